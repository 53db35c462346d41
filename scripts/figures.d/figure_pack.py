"""scripts/figures.d/figure_pack.py -- the pack pass of `packed` against copies of the same bytes by all ranks at once."""

from functools import partial

from figure import Row, mib
from figure_exchange import HOT_AND_USED, LENGTHS, SHAPE
from rounds import alternate

NAME = "pack"
ABOUT = "pack pass of packed, q k v in, bf16 32/8 heads d=128: share of the rate of memcpy"


def run(context):
    for buffers in HOT_AND_USED:
        for seq in LENGTHS[1:4] if context.quick else LENGTHS:
            yield partial(one, context, seq, buffers)


def one(context, seq, buffers):
    wanted = {"ranks": context.ranks, "seq": seq, **SHAPE, "exchange": "packed", "op": "in", "buffers": buffers}
    (probe,) = context.ours.rows(10, "exchange", **wanted)
    copied = {"ranks": context.ranks, "op": "memcpy", "bytes": probe["bytes"], "threads": 1, "buffers": buffers}

    def pack(n):
        (row,) = context.ours.rows(n, "exchange", **wanted)
        return {"exchange_us": row["times_us"], "pack_us": [row["conditions"]["pack_us"]]}

    def memcpy(n):
        (row,) = context.ours.rows(n, "link", **copied)
        return {"memcpy_us": row["times_us"]}

    rounds = alternate({"pack": pack, "memcpy": memcpy}, context.rounds, context.seconds)
    row = Row(f"S={seq:,} {mib(probe['bytes'])} {buffers}", rounds, threads=1, ranks=context.ranks)
    row.command = context.ours.command("exchange", **wanted)
    row.peer_command = context.ours.command("link", **copied)
    row.values = {"seq": seq, "bytes": probe["bytes"], "buffers": buffers}
    row.keep("pack", "memcpy")
    row.add("pack rate / memcpy rate", lambda m: m["memcpy_us"] / m["pack_us"], 0.8)
    return row
