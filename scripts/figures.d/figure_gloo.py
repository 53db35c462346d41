"""scripts/figures.d/figure_gloo.py -- exchange and attention against PyTorch's Ulysses path over gloo."""

import os
from functools import partial

from figure import Row
from rounds import alternate
from theirs import Peer

NAME = "gloo"
ABOUT = "exchange, and exchange plus attention, fp32 4 heads d=128: PyTorch over gloo against sptune"
SHAPE = {"heads": 4, "kv_heads": 4, "head_dim": 128}
LENGTHS = (1024, 2048, 4096, 8192)


def run(context):
    context.ours.needs_exchange(context.exchange)
    ranks = min(context.ranks, SHAPE["heads"])
    threads = max(1, context.machine["cpus"] // ranks)
    words = [context.python_with_torch(), os.path.join(context.peers, "ulysses_gloo.py")]
    peer = Peer([*words, "--ranks", str(ranks), "--threads", str(threads)])
    try:
        context.peer_about(peer.about)
        for seq in LENGTHS[:2] if context.quick else LENGTHS:
            for what in ("exchange", "fwd", "bwd"):
                yield partial(one, context, peer, ranks, threads, what, seq)
    finally:
        peer.close()


def one(context, peer, ranks, threads, what, seq):
    wanted = {"ranks": ranks, **SHAPE, "seq": seq, "dtype": "fp32", "exchange": context.exchange, "threads": threads}
    if what != "exchange":
        wanted.update(causal=1, direction=what)
    subject = "exchange" if what == "exchange" else "layer"

    def ours(n):
        (row,) = context.ours.rows(n, subject, **wanted)
        return {"sptune_us": row["times_us"]}

    def theirs(n):
        return {"gloo_us": peer.run(n, what, 1, seq, *SHAPE.values(), "fp32")}

    rounds = alternate({"sptune": ours, "gloo": theirs}, context.rounds, context.seconds)
    name = "exchange" if what == "exchange" else f"exchange+attention {what}"
    row = Row(f"{name} S={seq:,}", rounds, threads=threads, ranks=ranks)
    row.command = context.ours.command(subject, **wanted)
    row.peer_command = peer.words + [f"run N {what} 1 {seq} 4 4 128 fp32"]
    row.values = {"seq": seq}
    row.keep("sptune", "gloo")
    row.add("gloo / sptune", lambda m: m["gloo_us"] / m["sptune_us"], 2.0 if what != "exchange" else None)
    return row
