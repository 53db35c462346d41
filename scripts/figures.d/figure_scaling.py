"""scripts/figures.d/figure_scaling.py -- the attention kernel on two threads against one, beside the same of a pure FMA loop.

Where two CPUs share a core, the FMA loop's own speed-up shows what the machine had to give.
"""

from figure import Row, of_key
from figure_attention import options
from rounds import alternate

NAME = "scaling"
ABOUT = "attention fp32 d=128, S=4096: two threads (and all) against one"
TARGET = 1.7


def side(context, threads):
    def take(n):
        samples = {}
        for row in context.ours.rows(n, "attention", **options(threads, head_dim=128, causal="0,1", direction="fwd,bwd")):
            name = of_key(row, "direction", "causal") + f"-{threads}"
            samples[name + "_us"] = row["times_us"]
            samples[name + "_tflops"] = [row["ceiling_tflops"]]
        return samples

    return take


def run(context):
    cpus = context.machine["cpus"]
    if cpus < 2:
        context.cannot("one CPU")
        return
    counts = sorted({2, cpus})
    rounds = alternate(
        {f"{t} threads": side(context, t) for t in [1, *counts]}, context.rounds, context.seconds * 2
    )
    for threads in counts:
        for direction in ("fwd", "bwd"):
            for causal in (0, 1):
                one, many = (f"{direction}-{causal}-{t}" for t in (1, threads))
                row = Row(f"{direction} {'causal' if causal else 'full'} {threads} threads", rounds, threads=threads, ranks=1)
                row.command = context.ours.command(
                    "attention", **options(threads, head_dim=128, causal=causal, direction=direction)
                )
                row.keep(one, many)
                row.add("speed-up", lambda m, a=one, b=many: m[a + "_us"] / m[b + "_us"], TARGET if threads == 2 else None)
                row.add("speed-up of FMA loop", lambda m, a=one, b=many: m[b + "_tflops"] / m[a + "_tflops"])
                yield row
