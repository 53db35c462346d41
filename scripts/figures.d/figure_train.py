"""scripts/figures.d/figure_train.py -- a training run under sequence parallelism against one process with as many threads."""

import json
import os
from functools import partial

from figure import Row
from rounds import alternate

NAME = "train"
ABOUT = "training fp32, 2 layers of 512, S=4096: one process with two threads against sp 2 with one each"
TARGET = 0.9
FEWEST = 3  # a step takes seconds
MODEL = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1408, "vocab_size": 256, "max_position_embeddings": 4096,
}  # fmt: skip


def run(context):
    if context.machine["cpus"] < 2:
        context.cannot("one CPU")
        return
    yield partial(one, context)


def one(context):
    seq = 512 if context.quick else 4096
    model = os.path.join(context.ours.folder, "model.json")
    with open(model, "w", encoding="utf-8") as file:
        json.dump(MODEL, file)
    split, alone = ({"model": model, "seq": seq, "ranks": ranks, "sp": ranks, "threads": 2 // ranks} for ranks in (2, 1))

    def side(label, options):
        return lambda n: {label + "_us": context.ours.steps(n, **options)}

    rounds = alternate({"sp2": side("sp2", split), "alone": side("alone", alone)}, context.rounds, context.seconds, FEWEST)
    row = Row(f"S={seq:,}", rounds, threads=1, ranks=2)
    row.values["model"] = MODEL
    row.command, row.peer_command = (context.ours.train_command(**options) for options in (split, alone))
    row.add("one process / sp 2", lambda m: m["alone_us"] / m["sp2_us"], TARGET)
    return row
