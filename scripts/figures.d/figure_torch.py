"""scripts/figures.d/figure_torch.py -- attention against PyTorch's scaled_dot_product_attention on the same CPUs."""

import os
from functools import partial

from figure import Row
from rounds import alternate
from theirs import Peer

NAME = "torch"
ABOUT = "attention fp32, 4 heads, d=128, all CPUs: PyTorch SDPA against sptune"
SHAPE = {"heads": 4, "kv_heads": 4, "head_dim": 128}
TARGETS = {"fwd": 1.15, "bwd": 1.2}


def run(context):
    threads = context.machine["cpus"]
    peer = Peer([context.python_with_torch(), os.path.join(context.peers, "attention_torch.py"), "--threads", str(threads)])
    try:
        context.peer_about(peer.about)
        for direction in ("fwd", "bwd"):
            for causal in (0, 1):
                yield partial(one, context, peer, threads, direction, causal)
    finally:
        peer.close()


def one(context, peer, threads, direction, causal):
    seq = 2048 if context.quick else 8192
    wanted = {"ranks": 1, **SHAPE, "seq": seq, "dtype": "fp32", "causal": causal, "direction": direction}
    wanted["threads"] = threads

    def ours(n):
        (row,) = context.ours.rows(n, "attention", **wanted)
        return {"sptune_us": row["times_us"]}

    def theirs(n):
        return {"torch_us": peer.run(n, direction, causal, seq, *SHAPE.values(), "fp32")}

    rounds = alternate({"sptune": ours, "torch": theirs}, context.rounds, context.seconds)
    name = f"{direction} {'causal' if causal else 'full'} S={seq:,}"
    row = Row(name, rounds, threads=threads, ranks=1)
    row.command = context.ours.command("attention", **wanted)
    row.peer_command = peer.words + [f"run N {direction} {causal} {seq} 4 4 128 fp32"]
    row.keep("sptune", "torch")
    row.add("torch / sptune", lambda m: m["torch_us"] / m["sptune_us"], TARGETS[direction])
    return row
