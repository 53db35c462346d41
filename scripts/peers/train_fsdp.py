"""scripts/peers/train_fsdp.py -- training with Ulysses attention as PyTorch users do it: transformers, FSDP2, timed step by step.

    torchrun --nproc-per-node 8 scripts/peers/train_fsdp.py --config CONFIG --seq 131072 --sp 8 [--layers 4] [--batch 1] [--steps 10]
                                [--backend flash|cudnn|default] [--loss plain|tiled] [--dtype bf16|fp32] [--device cuda|cpu]
                                [--lr 1e-4] [--seed 1]

A model of transformers (llama, qwen2, qwen3; CONFIG is its config.json or that file's folder), cut to --layers, with random weights.
Around each attention, which is causal scaled_dot_product_attention: permute, all_to_all_single, permute, over groups of --sp
consecutive ranks; KV heads are repeated where there are fewer than ranks. fully_shard of every layer and of the whole over all ranks:
fp32 weights and AdamW states are sharded, computed with in --dtype, gradients reduced in fp32. Each layer is checkpointed in full.
Loss: mean of the cross-entropy of all of a step's tokens, labels shifted before they are sliced over the group; tiled: logits of a tile
of rows at a time, 1 GiB in fp32, made again in the backward. Gradients are clipped at 1.0. A step takes --batch sequences (default: one for each group), as many for each group, one after another.

One JSON line on rank 0's stdout for the run, then one for each step: loss, grad_norm (both before its update), step_us (maximum over
ranks), tokens_per_s, peak_bytes (allocated on the GPU in the step, on the CPU resident in the process so far; maximum over ranks).
Sequences depend on --seed, step and place in the batch alone, so that loss is the same at every --sp of one world, but for rounding.
Exit: 2 for sizes that do not go together; 77 without PyTorch, transformers or a GPU for each rank (torchrun itself then ends with 1).
"""

import argparse
import contextlib
import json
import os
import resource
import sys
import time
import types

import told

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import torch
    import torch.distributed as dist
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.checkpoint import checkpoint
except ImportError as missing:
    print(f"train_fsdp: no {missing.name} in {sys.executable}", file=sys.stderr)
    sys.exit(77)

import ulysses_gloo as path  # the same permutes and all-to-alls, whatever the backend

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "default": None}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
FAMILIES = ("llama", "qwen2", "qwen3")
CLIP = 1.0


def attention_of(sp, backend):
    """What transformers calls as a layer's attention: q, k, v are [B, H, S/P, D], all heads of this rank's tokens."""

    def attend(module, q, k, v, mask, dropout=0.0, scaling=None, **_):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        with sdpa_kernel(BACKENDS[backend]) if BACKENDS[backend] else contextlib.nullcontext():
            if sp == 1:
                return path.attend(q, k, v, True), None
            copies = max(1, sp // k.shape[2])
            if copies > 1:  # rank r then has KV head floor(r * kv_heads / sp)
                k, v = (t.repeat_interleave(copies, dim=2) for t in (k, v))
            return path.layer(q, k, v, True), None

    return attend


class Checkpointed(torch.nn.Module):
    """Keeps its layer's input alone; the layer runs again in the backward. FSDP's hooks are outside and run once."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *given, **named):
        return checkpoint(self.layer, *given, use_reentrant=False, **named)


def config_of(options):
    name = options.config
    with open(os.path.join(name, "config.json") if os.path.isdir(name) else name) as f:
        said = json.load(f)
    if not isinstance(said, dict) or not {"model_type", "num_hidden_layers"} <= said.keys():
        raise ValueError("no model_type, or no num_hidden_layers; right would be a model's config.json")
    if not 0 <= options.layers <= said["num_hidden_layers"]:
        raise ValueError(f"--layers {options.layers} of {said['num_hidden_layers']}; right would be 1 to as many, or 0 for all")
    if options.layers:
        said["num_hidden_layers"] = options.layers
        said.pop("layer_types", None)
    return transformers.AutoConfig.for_model(**said)


def refusal(options, config, world):
    """Why these sizes do not go together, or None."""
    sp, heads, kv_heads = options.sp, config.num_attention_heads, config.num_key_value_heads
    if config.model_type not in FAMILIES:
        return f"model_type {config.model_type}; right would be one of {', '.join(FAMILIES)}"
    if getattr(config, "use_sliding_window", False):
        return "a sliding window, which is not in the attention here; right would be use_sliding_window false"
    if sp < 1 or world % sp:
        return f"--sp {sp} of {world} ranks; right would be a divisor"
    if heads % sp or (kv_heads % sp and sp % kv_heads):
        return (f"--sp {sp} with {heads} query and {kv_heads} KV heads; "
                "right would be a divisor of the former, and a divisor or multiple of the latter")
    if options.seq < 2 or options.seq % sp:
        return f"--seq {options.seq} over --sp {sp}; right would be a multiple, of 2 tokens or more"
    if options.batch < 1 or options.batch % (world // sp):
        return f"--batch {options.batch} over {world // sp} groups; right would be a multiple"
    return None


def summed_loss(logits, labels):
    return torch.nn.functional.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")


def forward_plain(model, ids, labels, positions):
    hidden = model.model(ids[None], position_ids=positions[None], use_cache=False).last_hidden_state
    return summed_loss(model.lm_head(hidden[0]), labels)


def forward_tiled(model, ids, labels, positions):
    hidden = model.model(ids[None], position_ids=positions[None], use_cache=False).last_hidden_state
    rows = max(1, 2**28 // model.config.vocab_size)

    def tile(h, wanted):
        return summed_loss(model.lm_head(h), wanted)

    return sum(checkpoint(tile, h, wanted, use_reentrant=False) for h, wanted in zip(hidden[0].split(rows), labels.split(rows)))


FORWARDS = {"plain": forward_plain, "tiled": forward_tiled}  # the sum of this rank's token losses


def build(config, options, device, mesh):
    torch.manual_seed(options.seed)
    transformers.AttentionInterface.register("ulysses", attention_of(options.sp, options.backend))
    with torch.device(device):  # the same weights on every rank, of which each then keeps its part
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="ulysses", dtype=torch.float32)
    model.forward = types.MethodType(FORWARDS[options.loss], model)
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[options.dtype], reduce_dtype=torch.float32)
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = fully_shard(Checkpointed(layer), mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy).train()


def sequence(step, place, options, vocab, device):
    """ids and shifted labels of one whole sequence. Small ids are more frequent, so that there is something to learn."""
    chance = torch.Generator().manual_seed((options.seed * 1_000_003 + step) * 1_000_003 + place)
    ids = (torch.rand(options.seq, generator=chance) ** 3 * vocab).long().clamp(max=vocab - 1)
    labels = torch.cat((ids[1:], torch.tensor([-100])))
    return ids.to(device), labels.to(device)


def micro_step(model, data, options, rank, world):
    """Adds this sequence's part to the gradients; its part of the loss on this rank."""
    here = options.seq // options.sp
    mine = slice(rank % options.sp * here, (rank % options.sp + 1) * here)
    ids, labels = (t[mine] for t in data)
    positions = torch.arange(mine.start, mine.stop, device=ids.device)
    loss = model(ids, labels, positions) / (options.batch * (options.seq - 1))
    (loss * world).backward()  # FSDP takes the mean over ranks, of which each has a part of the sum
    return loss.detach()


def train_step(model, optimizer, sequences, options, rank, world):
    loss = sum(micro_step(model, data, options, rank, world) for data in sequences)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    return loss, norm.full_tensor()


def peak_bytes(device):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def run(model, config, options, device):
    rank, world = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.1, fused=device.type == "cuda")
    each = options.batch * options.sp // world
    places = range(rank // options.sp * each, (rank // options.sp + 1) * each)
    for step in range(1, options.steps + 1):
        sequences = [sequence(step, place, options, config.vocab_size, device) for place in places]
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        wait(device)
        dist.barrier()
        wait(device)
        begin = time.perf_counter()
        loss, norm = train_step(model, optimizer, sequences, options, rank, world)
        wait(device)
        worst = torch.tensor([time.perf_counter() - begin, peak_bytes(device)], dtype=torch.float64, device=device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        dist.all_reduce(loss)
        seconds, peak = worst.tolist()
        say(row="step", step=step, loss=loss.item(), grad_norm=norm.item(), step_us=round(seconds * 1e6, 3),
            tokens_per_s=round(options.batch * options.seq / seconds, 3), peak_bytes=int(peak))


def say(**row):
    if dist.get_rank() == 0:
        told.say(**row)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--layers", type=int, default=0, help="of the model's; 0: all")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--sp", type=int, default=1)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--backend", choices=BACKENDS, default="default")
    parser.add_argument("--loss", choices=FORWARDS, default="plain")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("started by itself; right would be torchrun --nproc-per-node 2 " + sys.argv[0])
    world = int(os.environ["WORLD_SIZE"])
    options.batch = options.batch or max(1, world // max(1, options.sp))
    try:
        config = config_of(options)
    except (OSError, ValueError) as wrong:
        parser.error(f"--config {options.config}: {wrong}")
    if why := refusal(options, config, world):
        parser.error(why)
    return options, config


def main():
    options, config = parse()
    told.alone()
    local = int(os.environ["LOCAL_RANK"])
    if options.device == "cuda":
        if torch.cuda.device_count() <= local:
            print(f"train_fsdp: {torch.cuda.device_count()} GPUs; rank {local} has none; --device cpu needs none", file=sys.stderr)
            sys.exit(77)
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo")
        path.choose_move()
    if options.sp > 1:
        path.group, _ = dist.new_subgroups(options.sp)
    model = build(config, options, device, init_device_mesh(device.type, (dist.get_world_size(),)))
    say(row="run", torch=torch.__version__, transformers=transformers.__version__,
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu", ranks=dist.get_world_size(), model=config.model_type,
        layers=config.num_hidden_layers, params=sum(w.numel() for w in model.parameters()), seq=options.seq, sp=options.sp,
        batch=options.batch, backend=options.backend, loss=options.loss, dtype=options.dtype)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    run(model, config, options, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
