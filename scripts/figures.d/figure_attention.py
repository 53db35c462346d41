"""scripts/figures.d/figure_attention.py -- the attention kernel on one thread, as a share of the measured multiply-add rate."""

from figure import Row, of_key
from rounds import alternate

NAME = "attention"
ABOUT = "attention fp32, one thread, S=4096: share of the measured FMA rate"
TARGETS = {("fwd", 128): 0.80, ("fwd", 64): 0.75, ("bwd", 128): 0.65, ("bwd", 64): 0.65}


def options(threads=1, **more):
    out = {"ranks": 1, "heads": 1, "kv_heads": 1, "seq": 4096, "dtype": "fp32"}
    out.update(more)
    return {**out, "threads": threads}


def run(context):
    wanted = options(head_dim="64,128", causal="0,1", direction="fwd,bwd")
    flops = {}

    def take(n):
        samples = {}
        for row in context.ours.rows(n, "attention", **wanted):
            name = of_key(row, "direction", "head_dim", "causal")
            flops[name] = row["flops"]
            samples[name + "_us"] = row["times_us"]
            samples[name + "_tflops"] = [row["ceiling_tflops"]]
        return samples

    rounds = alternate({"sptune": take}, context.rounds, context.seconds * 4)
    for direction in ("fwd", "bwd"):
        for head_dim in (128, 64):
            for causal in (0, 1):
                name = f"{direction}-{head_dim}-{causal}"
                row = Row(f"{direction} d={head_dim} {'causal' if causal else 'full'}", rounds, threads=1, ranks=1)
                row.command = context.ours.command(
                    "attention", **options(head_dim=head_dim, causal=causal, direction=direction)
                )
                row.keep(name)
                row.add(
                    "share of FMA rate",
                    lambda m, name=name: flops[name] / m[name + "_us"] / 1e6 / m[name + "_tflops"],
                    TARGETS[direction, head_dim],
                )
                yield row
