"""scripts/figures.d/figure_mpi.py -- exchange `direct` against Open MPI's MPI_Alltoall with pack and unpack."""

import os
import shutil
import subprocess
from functools import partial

from figure import Row, mib, of_key
from figure_exchange import HOT_AND_USED, LENGTHS, SHAPE
from ours import Unmeasured
from rounds import alternate
from theirs import Peer

NAME = "mpi"
ABOUT = "whole forward exchange: MPI_Alltoall with pack and unpack against direct"
# separate: the form with pack and unpack; the others skip what can be skipped.
FORMS = {
    "separate": ("MPI pack, unpack", 2.0),
    "needed": ("MPI needed passes", None),
    "together": ("MPI q,k,v together", None),
}


def start(context):
    """The comparator, waiting."""
    built = subprocess.run([os.path.join(context.peers, "build"), context.ours.folder], capture_output=True, text=True)
    if built.returncode != 0:
        raise Unmeasured("MPI comparator: " + (built.stderr.strip() or "not built")[-300:])
    if shutil.which("mpirun") is None:
        raise Unmeasured("MPI comparator: no mpirun")
    allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for bind in ("core", "none"):  # some containers do not let it bind
        words = ["mpirun", "--oversubscribe", "--bind-to", bind, "-n", str(context.ranks)]
        try:
            return Peer([*words, os.path.join(context.ours.folder, "alltoall_mpi")], allow)
        except Unmeasured:
            if bind == "none":
                raise


def run(context):
    context.ours.needs_exchange(context.exchange)
    peer = start(context)
    try:
        context.peer_about(peer.about)
        for buffers in HOT_AND_USED:
            for seq in LENGTHS[1:4] if context.quick else LENGTHS:
                yield partial(one, context, peer, seq, buffers)
    finally:
        peer.close()


def one(context, peer, seq, buffers):
    wanted = {"ranks": context.ranks, "seq": seq, **SHAPE, "exchange": context.exchange, "buffers": buffers}
    sent = {}

    def ours(n):
        (row,) = context.ours.rows(n, "exchange", **wanted)
        sent["sptune"] = row["bytes"]
        return {of_key(row, "exchange") + "_us": row["times_us"]}

    def theirs(n):
        samples = {}
        for form in FORMS:
            answer = peer.ask(n, form, seq, SHAPE["heads"], SHAPE["kv_heads"], SHAPE["head_dim"], 1, 2, buffers)
            samples[form + "_us"] = answer["times_us"]
            sent["mpi"] = answer["bytes"]
        return samples

    rounds = alternate({"sptune": ours, "mpi": theirs}, context.rounds, context.seconds)
    if sent["sptune"] != sent["mpi"]:
        raise Unmeasured(f"bytes of one rank differ: sptune {sent['sptune']}, MPI {sent['mpi']}")
    row = Row(f"S={seq:,} {mib(sent['mpi'])} {buffers}", rounds, threads=1, ranks=context.ranks)
    row.command = context.ours.command("exchange", **wanted)
    row.peer_command = peer.words + [f"run N FORM {seq} 32 8 128 1 2 {buffers}"]
    row.values = {"seq": seq, "bytes": sent["mpi"], "buffers": buffers}
    row.keep(context.exchange, *FORMS)
    for form, (name, target) in FORMS.items():
        ratio = lambda m, form=form: m[form + "_us"] / m[context.exchange + "_us"]  # noqa: E731
        row.add(f"{name} / {context.exchange}", ratio, target)
    return row
