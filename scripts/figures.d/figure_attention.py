"""scripts/figures.d/figure_attention.py -- the attention kernel on one thread, as a share of the measured multiply-add rate."""

from functools import partial

from figure import Row, of_row
from rounds import alternate

NAME = "attention"
ABOUT = "attention fp32, one thread, S=4096: share of the measured FMA rate"
TARGETS = {("fwd", 128): 0.80, ("fwd", 64): 0.75, ("bwd", 128): 0.65, ("bwd", 64): 0.65}


def options(threads=1, **more):
    out = {"ranks": 1, "heads": 1, "kv_heads": 1, "seq": 4096, "dtype": "fp32"}
    out.update(more)
    return {**out, "threads": threads}


def run(context):
    for direction in ("fwd", "bwd"):
        for head_dim in (128, 64):
            for causal in (0, 1):
                yield partial(one, context, direction, head_dim, causal)


def one(context, direction, head_dim, causal):
    wanted = options(head_dim=head_dim, causal=causal, direction=direction)
    flops = {}

    def take(n):
        (row,) = context.ours.rows(n, "attention", **wanted)
        flops["of_row"] = row["flops"]
        return {"attention_us": row["times_us"], "ceiling_tflops": [of_row(row, "ceiling_tflops")]}

    rounds = alternate({"sptune": take}, context.rounds, context.seconds)
    row = Row(f"{direction} d={head_dim} {'causal' if causal else 'full'}", rounds, threads=1, ranks=1)
    row.command = context.ours.command("attention", **wanted)
    row.add(
        "share of FMA rate",
        lambda m: flops["of_row"] / m["attention_us"] / 1e6 / m["ceiling_tflops"],
        TARGETS[direction, head_dim],
    )
    return row
