"""scripts/peers/ulysses_nccl.py -- Ulysses attention as PyTorch trainers do it, on GPUs over NCCL, timed.

    torchrun --nproc-per-node 2 scripts/peers/ulysses_nccl.py [--seq 4096,32768] [--heads 32] [--kv-heads 8]
                                                              [--head-dim 128] [--what exchange,layer] [--samples 20]

exchange   q, k, v in and o out: permute, all_to_all_single, permute, each tensor by itself
layer      the same around causal scaled_dot_product_attention: forward, and forward with backward; by flash and by cuDNN
One JSON line per row on rank 0's stdout; times_us are the maximum over ranks. bf16, one sequence. Modes: gated, which is device time
(the ranks meet in an all-reduce, behind a spin that lets the host put everything on the stream first), and aligned, where the host's
launches count too. KV heads must be a multiple of the ranks. Exit: 77 without PyTorch or a GPU for each rank.

Samples of `layer` are of a GPU under load, at the clocks that its power limit leaves a training run (load.py): before each, every rank
runs the same number of iterations untimed, about 120 ms of them (at least one; none where one takes 1.2 s). One load for several samples
would not do: with a spin of 3 ms before each layer of 7, the GPU computes nothing for nearly a third of the time, and clocks may rise again.
`load_us` is the shortest of the row's loads, on any rank.
"""

import argparse
import json
import os
import statistics
import sys

try:
    import torch
    import torch.distributed as dist
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    print("ulysses_nccl: no PyTorch in", sys.executable, file=sys.stderr)
    sys.exit(77)

import load
import ulysses_gloo as path  # the same permutes and all-to-alls, whatever the backend

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
SPIN_CYCLES = 6_000_000  # some 3 ms: longer than the host takes for a layer's launches


def once(operation, mode, token):
    """Milliseconds of one call on this rank's stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    if mode == "aligned":
        dist.barrier()
        torch.cuda.synchronize()
    else:
        torch.cuda._sleep(SPIN_CYCLES)
        dist.all_reduce(token)
    begin.record()
    operation()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def agreed(numbers, how):
    """Of all ranks."""
    told = torch.tensor(numbers, device="cuda", dtype=torch.float64)
    dist.all_reduce(told, how)
    return told.tolist()


def timed(operation, mode, samples, loaded=False):
    """What the row tells of its times."""
    token = torch.ones(1, device="cuda")
    *_, warm = [once(operation, mode, token) for _ in range(3)]
    slowest_ms = agreed([warm], dist.ReduceOp.MAX)[0]
    count = load.iterations(slowest_ms * 1e3) if loaded else 0  # the same on all ranks: the operation has collectives
    loads, mine = [], []
    for _ in range(samples):
        loads.append(load.back_to_back(torch.cuda, operation, count))
        mine.append(once(operation, mode, token))
    made = {"times_us": [ms * 1e3 for ms in agreed(mine, dist.ReduceOp.MAX)]}
    if loaded:
        made["load_us"] = round(min(agreed(loads, dist.ReduceOp.MIN)))
    return made


def say(**row):
    if dist.get_rank() == 0:
        if "times_us" in row:
            row["median_us"] = round(statistics.median(row["times_us"]), 3)
            row["times_us"] = [round(us, 3) for us in row["times_us"]]
        print(json.dumps(row), flush=True)


def tensors(seq, heads, dim, grad=False):
    return torch.randn(1, seq, heads, dim, device="cuda", dtype=torch.bfloat16, requires_grad=grad)


def exchange(seq, options):
    here = seq // dist.get_world_size()
    q, k, v = (tensors(here, h, options.head_dim) for h in (options.heads, options.kv_heads, options.kv_heads))
    with torch.no_grad():
        o = path.to_heads(q)
        for mode in ("gated", "aligned"):
            times = timed(lambda: ([path.to_heads(t) for t in (q, k, v)], path.to_seq(o)), mode, options.samples)
            say(row="exchange", mode=mode, seq=seq, **times)


def layer(seq, options, backend):
    here = seq // dist.get_world_size()
    parts = [tensors(here, h, options.head_dim, True) for h in (options.heads, options.kv_heads, options.kv_heads)]
    do = tensors(here, options.heads, options.head_dim)
    samples = max(3, options.samples // (4 if seq > 65536 else 1))

    def both():
        torch.autograd.grad(path.layer(*parts, True), parts, do)

    with sdpa_kernel(BACKENDS[backend]):
        with torch.no_grad():
            forward = timed(lambda: path.layer(*parts, True), "gated", samples, loaded=True)
        say(row="layer", backend=backend, direction="fwd", mode="gated", seq=seq, **forward)
        say(row="layer", backend=backend, direction="fwd+bwd", mode="gated", seq=seq, **timed(both, "gated", samples, loaded=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seq", default="4096,8192,32768,131072")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--what", default="exchange,layer")
    parser.add_argument("--samples", type=int, default=20)
    options = parser.parse_args()
    local = int(os.environ.get("LOCAL_RANK", 0))
    if "RANK" not in os.environ:
        parser.error("started by itself; right would be torchrun --nproc-per-node 2 " + sys.argv[0])
    if torch.cuda.device_count() <= local:
        print(f"ulysses_nccl: {torch.cuda.device_count()} GPUs; rank {local} has none", file=sys.stderr)
        sys.exit(77)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    say(row="context", torch=torch.__version__, nccl=str(torch.cuda.nccl.version()), cudnn=torch.backends.cudnn.version(),
        gpu=torch.cuda.get_device_name(), ranks=dist.get_world_size(), heads=options.heads, kv_heads=options.kv_heads,
        head_dim=options.head_dim)
    for seq in (int(s) for s in options.seq.split(",")):
        if "exchange" in options.what:
            exchange(seq, options)
        if "layer" in options.what:
            for backend in BACKENDS:
                layer(seq, options, backend)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
