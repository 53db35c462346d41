#!/usr/bin/env python3
"""scripts/peers/elementwise.py -- how often the Llama of the Transformers that is installed here reads and writes each element of what is
neither product nor attention: the counts of target accelerate (src/sp/target_accelerate.c, docs/models.md), on a CPU, without timing anything.

    elementwise.py [--vocab 1000]

One forward and backward pass in bf16 under a dispatch mode that sees every kernel PyTorch runs, eagerly, as the emitted train.py does. Sizes
are all different, so a tensor's shape says what it is. A table: elements, forward and backward, times in bf16 and in fp32, each
reading and each writing being one. What a kernel does within a call it does not show: softmax reads its row again (three times in
all forward, twice backward), which counts where a row does not fit into a multiprocessor; that is added in the line "again".
Exit: 0 done; 2 wrong usage; 77 no PyTorch or Transformers.
"""

import argparse
import collections
import math
import sys

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, DIM, SEQ = 2, 96, 160, 6, 2, 16, 40
VIEWS = {
    "view", "_unsafe_view", "transpose", "t", "expand", "slice", "unsqueeze", "squeeze", "permute", "as_strided", "select", "detach", "alias",
    "_reshape_alias", "split", "split_with_sizes", "unbind", "chunk", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
}  # fmt: skip
ELSEWHERE = ("mm", "bmm", "addmm", "embedding", "embedding_dense_backward")  # priced, or of the weights
# Kernels that leave alone most of what they are given, or run as two: (bytes of inputs, bytes of outputs) that count.
ODD = {
    "nll_loss_forward": (0, 0),  # a label's logit a row
    "nll_loss_backward": (0, 1),  # zeros, and one a row
    "slice_backward": (1, 1.5),  # zeros everywhere, then a half copied
}
AGAIN = {"_log_softmax": 2, "_log_softmax_backward_data": 1}  # readings that a long row needs besides


def size(tensor):
    """Elements that are in memory: a broadcast one is there once."""
    return math.prod(length for length, stride in zip(tensor.shape, tensor.stride()) if stride != 0)


def kind_of(name, tensors, vocab):
    """What the largest of them is, by its sizes; of a row of the hidden size: a norm's, or a sum's."""
    shape = max((tuple(t.shape) for t in tensors), key=math.prod, default=())
    if vocab in shape:
        return "logits"
    if INNER in shape:
        return "inner"
    if HIDDEN in shape and SEQ in shape:
        return "sum" if name in ("add", "add_") and all(str(t.dtype) == "torch.bfloat16" for t in tensors) else "norm"
    return "turned" if SEQ in shape and len(shape) == 4 else ""


def counted(torch, vocab, run):
    """Elements that move, by (kind, dtype); and what a long row adds."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    moved, again = collections.Counter(), collections.Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            name = func._schema.name.split("::")[1]
            if name in VIEWS or name in ELSEWHERE or "attention" in name:
                return out
            ins, outs = ([t for t in tree_flatten(x)[0] if isinstance(t, torch.Tensor)] for x in ((args, kwargs), out))
            kind = kind_of(name, ins + outs, vocab)
            of_in, of_out = ODD.get(name, (1, 1))
            for tensors, share in ((ins, of_in), (outs, of_out)):
                for t in tensors:
                    moved[kind, str(t.dtype)] += size(t) * share
            if name in AGAIN:
                again[kind] += size(ins[0]) * AGAIN[name]
            return out

    with Count():
        run()
    return moved, again


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].split(" -- ")[1])
    parser.add_argument("--vocab", type=int, default=1000, help="entries, another number than any other size [1000]")
    options = parser.parse_args()
    if options.vocab < 2 or options.vocab in (HIDDEN, INNER, SEQ, DIM, DIM // 2, HEADS * DIM, KV_HEADS * DIM):
        parser.error(f"--vocab {options.vocab}; right would be 2 or more and another size than the model's")
    try:
        import torch
        import transformers
    except ImportError as why:
        print(f"elementwise: {why}; right would be a Python with PyTorch and Transformers", file=sys.stderr)
        return 77
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=DIM,
        vocab_size=options.vocab, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa").to(torch.bfloat16).train()
    ids = torch.randint(0, options.vocab, (1, SEQ))
    loss = []
    ways = [counted(torch, options.vocab, lambda: loss.append(model(input_ids=ids, labels=ids).loss))]
    ways.append(counted(torch, options.vocab, lambda: loss[0].backward()))
    rows = SEQ * HIDDEN
    of = {
        "norm": rows * (2 * LAYERS + 1), "sum": rows * 2 * LAYERS, "turned": SEQ * DIM * (HEADS + KV_HEADS) * LAYERS, "inner": SEQ * INNER * LAYERS,
        "logits": SEQ * options.vocab,
    }  # fmt: skip
    print(f"torch {torch.__version__}, transformers {transformers.__version__}\n")
    print("| elements | forward: bf16 | fp32 | backward: bf16 | fp32 |\n|---|---|---|---|---|")
    for kind, elements in of.items():
        cells = [f"{moved[kind, 'torch.' + dtype] / elements:.1f}" for moved, _ in ways for dtype in ("bfloat16", "float32")]
        print(f"| {kind} | " + " | ".join(cells) + " |")
        if any(again[kind] for _, again in ways):
            print(f"| {kind}, again | | {ways[0][1][kind] / elements:.1f} | | {ways[1][1][kind] / elements:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
