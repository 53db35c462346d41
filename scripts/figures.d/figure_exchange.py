"""scripts/figures.d/figure_exchange.py -- exchange `direct` against `packed`, the two-pass form, and the peer-copy ceiling."""

from functools import partial

from figure import Row, mib, of_key
from rounds import alternate

NAME = "exchange"
ABOUT = "whole forward exchange bf16 32/8 heads d=128: direct, packed, two-pass"
LENGTHS = (64, 256, 1024, 4096, 16384)
HOT_AND_USED = ("hot", "used")  # between iterations nobody touches the buffers, or their owners do, as in a layer
SHAPE = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bf16", "threads": 1}
TARGETS = {"packed": 2.0, "packed-separate": 3.3}


def run(context):
    context.ours.needs_exchange(context.exchange)
    for buffers in HOT_AND_USED if context.quick else (*HOT_AND_USED, "cold"):
        for seq in LENGTHS[1:4] if context.quick else LENGTHS:
            yield partial(one, context, seq, buffers)


def one(context, seq, buffers):
    best = context.exchange
    others = [name for name in TARGETS if name != best]
    wanted = {"ranks": context.ranks, "seq": seq, **SHAPE, "exchange": ",".join([best, *others]), "buffers": buffers}
    sent = {}

    def take(n):
        samples = {}
        for row in context.ours.rows(n, "exchange", **wanted):
            name = of_key(row, "exchange")
            sent["bytes"] = row["bytes"]
            samples[name + "_us"] = row["times_us"]
            if name == best and row["ceiling_GBps"] is not None:
                samples[name + "_ceiling_GBps"] = [row["ceiling_GBps"]]
        return samples

    rounds = alternate({"sptune": take}, context.rounds, context.seconds)
    row = Row(f"S={seq:,} {mib(sent['bytes'])} {buffers}", rounds, threads=1, ranks=context.ranks)
    row.command = context.ours.command("exchange", **wanted)
    row.keep(best, *others)
    row.values = {"seq": seq, "bytes": sent["bytes"], "buffers": buffers, "exchange": best}
    for other in others:
        row.add(f"{other} / {best}", lambda m, o=other: m[o + "_us"] / m[best + "_us"], TARGETS[other])
    ceiling = best + "_ceiling_GBps"
    if all(ceiling in r["samples"] for r in row.rounds):
        row.add(f"{best}, share of peer copy", lambda m: sent["bytes"] / m[best + "_us"] / 1e3 / m[ceiling], 0.7)
    return row
