"""scripts/figures.d/figure_scaling.py -- the attention kernel on two threads against one, beside the same of a pure FMA loop.

Where two CPUs share a core, the FMA loop's own speed-up shows what the machine had to give.
"""

from functools import partial

from figure import Row, of_row
from figure_attention import options
from rounds import alternate

NAME = "scaling"
ABOUT = "attention fp32 d=128, S=4096: two threads (and all) against one"
TARGET = 1.7


def run(context):
    cpus = context.machine["cpus"]
    if cpus < 2:
        context.cannot("one CPU")
        return
    for direction in ("fwd", "bwd"):
        for causal in (0, 1):
            yield partial(one, context, direction, causal, sorted({2, cpus}))


def one(context, direction, causal, counts):
    shape = {"head_dim": 128, "causal": causal, "direction": direction}

    def side(threads):
        def take(n):
            (row,) = context.ours.rows(n, "attention", **options(threads, **shape))
            return {f"threads{threads}_us": row["times_us"], f"threads{threads}_tflops": [of_row(row, "ceiling_tflops")]}

        return take

    rounds = alternate({f"{t} threads": side(t) for t in [1, *counts]}, context.rounds, context.seconds)
    row = Row(f"{direction} {'causal' if causal else 'full'}", rounds, threads=counts[-1], ranks=1)
    row.command = context.ours.command("attention", **options(counts[-1], **shape))  # and the other numbers
    for n in counts:
        many = f"threads{n}_"
        row.add(f"speed-up, {n} threads", lambda m, many=many: m["threads1_us"] / m[many + "us"], TARGET if n == 2 else None)
        row.add(f"of the FMA loop, {n} threads", lambda m, many=many: m[many + "tflops"] / m["threads1_tflops"])
    return row
