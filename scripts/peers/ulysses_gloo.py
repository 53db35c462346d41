"""scripts/peers/ulysses_gloo.py -- Ulysses attention as PyTorch trainers do it, on CPUs over gloo, timed.

    ulysses_gloo.py [--ranks P] [--threads N] [--once "run ITERATIONS exchange|fwd|bwd CAUSAL S HEADS KV_HEADS D fp32|bf16"]

exchange   q, k, v in and o out: permute, all_to_all_single, permute, each tensor by itself
fwd, bwd   the same around scaled_dot_product_attention; the backward is timed alone: autograd.grad of a kept graph
all_to_all_single where this PyTorch's gloo has it, else isend and irecv to each peer; the first line says which. N threads and
CPUs per rank. Times are the maximum over ranks, which a barrier aligns. KV_HEADS must be a multiple of P. Before times count, the
attention of a small sequence is held against the unsplit one, gradients too. Exit: 0 done; 1 wrong data; 77 no PyTorch.
"""

import argparse
import os
import socket
import subprocess
import sys

import told

try:
    import torch
    import torch.distributed as dist
except ImportError:
    print("ulysses_gloo: no PyTorch in", sys.executable, file=sys.stderr)
    sys.exit(77)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
group = None  # the ranks that exchange with each other; None: all


def by_single(out, blocks):
    dist.all_to_all_single(out, blocks, group=group)


def by_pairs(out, blocks):
    """What is left where the backend has no all-to-all."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    out[rank].copy_(blocks[rank])
    peers = [(rank + i) % size for i in range(1, size)]
    name = {p: p if group is None else dist.get_global_rank(group, p) for p in peers}
    pending = [dist.irecv(out[p], name[p], group) for p in peers] + [dist.isend(blocks[p], name[p], group) for p in peers]
    for request in pending:
        request.wait()


move = by_single


def choose_move():
    """The first way that works here."""
    global move
    blocks = torch.arange(float(dist.get_world_size())) + dist.get_rank() * 100
    for move in (by_single, by_pairs):
        out = torch.empty_like(blocks)
        try:
            move(out, blocks)
        except (RuntimeError, ValueError):
            continue
        if torch.equal(out, torch.arange(float(dist.get_world_size())) * 100 + dist.get_rank()):
            return "all_to_all_single" if move is by_single else "isend and irecv"
    raise SystemExit("ulysses_gloo: no way to exchange")


def to_heads(x):
    """[B, S/P, H, D] -> [B, S, H/P, D]"""
    b, s, h, d = x.shape
    p = dist.get_world_size(group)
    blocks = x.view(b, s, p, h // p, d).permute(2, 0, 1, 3, 4).contiguous()
    out = torch.empty_like(blocks)
    move(out, blocks)
    return out.permute(1, 0, 2, 3, 4).reshape(b, p * s, h // p, d)


def to_seq(x):
    """[B, S, H/P, D] -> [B, S/P, H, D]"""
    b, s, h, d = x.shape
    p = dist.get_world_size(group)
    blocks = x.view(b, p, s // p, h, d).transpose(0, 1).contiguous()
    out = torch.empty_like(blocks)
    move(out, blocks)
    return out.permute(1, 2, 0, 3, 4).reshape(b, s // p, p * h, d)


class Exchange(torch.autograd.Function):
    """One direction; its gradient is the other."""

    @staticmethod
    def forward(ctx, x, forth, back):
        ctx.back = (back, forth)
        return forth(x)

    @staticmethod
    def backward(ctx, g):
        return Exchange.apply(g.contiguous(), *ctx.back), None, None


def attend(q, k, v, causal):
    """Of [B, S, H, D]."""
    gqa = {"enable_gqa": True} if k.shape[2] != q.shape[2] else {}
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **gqa).transpose(1, 2)


def layer(q, k, v, causal):
    q, k, v = (Exchange.apply(t, to_heads, to_seq) for t in (q, k, v))
    return Exchange.apply(attend(q, k, v, causal).contiguous(), to_seq, to_heads)


def shards(seq, heads, kv_heads, dim, dtype, grad):
    """This rank's tokens of q, k, v; the same numbers whatever the number of ranks."""
    torch.manual_seed(1)
    whole = [torch.randn(1, seq, h, dim).to(dtype) for h in (heads, kv_heads, kv_heads)]
    part = seq // dist.get_world_size()
    first = dist.get_rank() * part
    return whole, [t[:, first : first + part].contiguous().requires_grad_(grad) for t in whole]


def check(heads, kv_heads):
    p, rank = dist.get_world_size(), dist.get_rank()
    whole, mine = shards(16 * p, heads, kv_heads, 8, torch.float32, True)
    whole = [t.requires_grad_() for t in whole]
    wanted, got = attend(*whole, True), layer(*mine, True)
    do = torch.randn_like(wanted)
    part = slice(16 * rank, 16 * (rank + 1))
    pairs = [(got, wanted[:, part])]
    grads = torch.autograd.grad(wanted, whole, do)
    pairs += list(zip(torch.autograd.grad(got, mine, do[:, part]), (g[:, part] for g in grads)))
    ok = torch.tensor([float(all((a - b).abs().max() < 1e-4 for a, b in pairs))])
    dist.all_reduce(ok, dist.ReduceOp.MIN)
    if ok.item() != 1:
        if rank == 0:
            print("ulysses_gloo: wrong data", file=sys.stderr)
        sys.exit(1)


def run(iterations, what, causal, seq, heads, kv_heads, dim, dtype):
    iterations, seq, heads, kv_heads, dim = (int(x) for x in (iterations, seq, heads, kv_heads, dim))
    causal = bool(int(causal))
    p = dist.get_world_size()
    if seq % p or heads % p or kv_heads % p:
        raise SystemExit(f"ulysses_gloo: {seq} tokens, {heads}/{kv_heads} heads; right would be multiples of {p}")
    check(heads, kv_heads)
    _, (q, k, v) = shards(seq, heads, kv_heads, dim, DTYPES[dtype], what == "bwd")
    if what == "bwd":
        o = layer(q, k, v, causal)
        do = torch.randn_like(o)
        return slowest(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), iterations)
    with torch.no_grad():
        if what == "fwd":
            return slowest(lambda: layer(q, k, v, causal), iterations)
        o = to_heads(q)
        return slowest(lambda: ([to_heads(t) for t in (q, k, v)], to_seq(o)), iterations)


def slowest(operation, iterations):
    times = torch.tensor(told.times(operation, iterations, before=dist.barrier), dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def follow(words):
    """The words of rank 0's command on every rank; None: no more."""
    said = [words]
    dist.broadcast_object_list(said, 0)
    return said[0]


def work(options, rank):
    torch.set_num_threads(options.threads)
    cpus = sorted(os.sched_getaffinity(0))
    if options.ranks * options.threads <= len(cpus):
        os.sched_setaffinity(0, cpus[rank * options.threads : (rank + 1) * options.threads])
    told.alone()
    dist.init_process_group("gloo", init_method=options.meet, rank=rank, world_size=options.ranks)
    by = choose_move()
    if rank > 0:
        while (words := follow(None)) is not None:
            run(*words)
        return
    told.say(ready=True, library=f"PyTorch {torch.__version__} gloo", exchange=by, ranks=options.ranks, threads=options.threads)
    for words in told.lines(options.once):
        follow(words)
        told.say(times_us=run(*words))
    follow(None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--once")
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    others = []
    if options.rank == 0:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            options.meet = f"tcp://127.0.0.1:{s.getsockname()[1]}"
        for rank in range(1, options.ranks):
            words = [sys.executable, os.path.abspath(__file__), "--ranks", str(options.ranks), "--threads", str(options.threads)]
            others.append(subprocess.Popen([*words, "--meet", options.meet, "--rank", str(rank)], stdin=subprocess.DEVNULL))
    try:
        work(options, options.rank)
        dist.destroy_process_group()
    finally:
        for other in others:
            try:
                other.wait(10)
            except subprocess.TimeoutExpired:
                other.kill()


if __name__ == "__main__":
    main()
