"""scripts/peers/attention_torch.py -- PyTorch's scaled_dot_product_attention on the CPU, forward or backward, timed.

    attention_torch.py [--threads N] [--once "run ITERATIONS fwd|bwd CAUSAL S HEADS KV_HEADS D fp32|bf16|fp16"]

Tensors are contiguous [1][heads][S][D], which suits PyTorch best; with fewer kv heads than heads, enable_gqa. The backward is
timed alone: autograd.grad of a kept graph. Without --once, commands come over stdin (told.py). A small shape is held against the
plain formula in double precision first. Exit: 0 done; 1 wrong data; 77 no PyTorch.
"""

import argparse
import sys

import told

try:
    import torch
except ImportError:
    print("attention_torch: no PyTorch in", sys.executable, file=sys.stderr)
    sys.exit(77)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def tensors(seq, heads, kv_heads, dim, dtype, grad):
    torch.manual_seed(1)
    return [
        torch.randn(1, h, seq, dim).to(dtype).requires_grad_(grad) for h in (heads, kv_heads, kv_heads)
    ]


def attend(q, k, v, causal):
    gqa = {"enable_gqa": True} if k.shape[1] != q.shape[1] else {}
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **gqa)


def check():
    """Largest error against the formula, of the output and of the gradients; both causal and not."""
    for causal in (False, True):
        given = tensors(65, 4, 2, 16, torch.float32, True)
        exact = [t.detach().double().requires_grad_() for t in given]
        o = attend(*given, causal)
        q, k, v = exact[0], *(t.repeat_interleave(2, 1) for t in exact[1:])
        scores = q @ k.transpose(2, 3) / 16**0.5
        if causal:
            scores = scores.masked_fill(torch.ones(65, 65).triu(1).bool(), float("-inf"))
        want = scores.softmax(3) @ v
        do = torch.randn_like(o)
        got = [o, *torch.autograd.grad(o, given, do)]
        for a, b in zip(got, [want, *torch.autograd.grad(want, exact, do.double())]):
            if (a.double() - b).abs().max() > 1e-4:
                print("attention_torch: wrong data", file=sys.stderr)
                sys.exit(1)


def run(iterations, direction, causal, seq, heads, kv_heads, dim, dtype):
    backward = direction == "bwd"
    q, k, v = tensors(int(seq), int(heads), int(kv_heads), int(dim), DTYPES[dtype], backward)
    causal = bool(int(causal))
    if not backward:
        with torch.no_grad():
            return told.times(lambda: attend(q, k, v, causal), int(iterations))
    o = attend(q, k, v, causal)
    do = torch.randn_like(o)
    return told.times(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), int(iterations))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--once")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    check()
    told.say(ready=True, library=f"PyTorch {torch.__version__}", threads=torch.get_num_threads())
    for words in told.lines(options.once):
        told.say(times_us=run(*words))


if __name__ == "__main__":
    main()
