#!/usr/bin/env python3
# @PROVENANCE@
"""Train a causal language model on long sequences, split the way the plan beside this file says.

Launch it from its own directory: ./launch.sh, or `accelerate launch --config_file accelerate.yaml train.py`, with --cpu where there is no GPU.
Without --data it trains on the bytes of Python's own library, so that it runs at once and anywhere.

What a rank reads: Accelerate gives every rank sequences of its own. With sp_size P the P ranks of a group then train
together on each of their P sequences in turn, every rank on 1/P of its tokens. One optimizer step therefore sees
micro_batch x accumulate x world / P sequences; with --tokens-per-step the accumulation follows from that.
"""

import argparse
import array
import json
import math
import os
import resource
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path

# @PLAN@

NEEDED = {"torch": "2.3", "transformers": "4.51.3", "accelerate": "1.12", "deepspeed": "0.18.2"}


def version(package):
    """(1, 12, 0) of an installed package, () where it is absent."""
    try:
        text = metadata.version(package)
    except metadata.PackageNotFoundError:
        return ()
    parts = text.split("+")[0].split(".")
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts[:3])


def check_versions():
    """torch before 2.3 fails in backward when sp_size < world; the others are what first carried this method."""
    wrong = []
    for package, least in NEEDED.items():
        have = version(package)
        if have < tuple(int(part) for part in least.split(".")):
            wrong.append(f"{package} {'.'.join(map(str, have)) or 'is not installed'}: {least} or later is needed")
    if wrong:
        sys.exit("train.py: " + "; ".join(wrong))


check_versions()

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

IGNORED = -100
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="model directory or hub id [the planned one]")
    parser.add_argument(
        "--random-init",
        action="store_true",
        help="start from random weights of the planned shape, as without --model when the plan names no weights",
    )
    parser.add_argument(
        "--data",
        nargs="*",
        default=[],
        metavar="FILE",
        help='text files, or .jsonl with a "text" in each line [the bytes of Python\'s library]',
    )
    parser.add_argument("--tokenizer", default=None, help="directory or hub id [--model; bytes with --random-init]")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps [%(default)s]")
    parser.add_argument("--tokens-per-step", type=int, default=0, help="sets the accumulation [as planned]")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--warmup", type=int, default=10, help="steps [%(default)s]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="try it without a GPU: gloo and DeepSpeed's CPU device")
    parser.add_argument("--save", default=None, metavar="DIR", help="write the trained model here")
    arguments = parser.parse_args()
    if arguments.model is None:
        arguments.model = PLAN["model"]
        arguments.random_init = arguments.random_init or PLAN["weights"] == "random"
    if arguments.tokenizer is None and not arguments.random_init:
        arguments.tokenizer = arguments.model
    return arguments


def accumulation(tokens_per_step):
    """Micro-steps per optimizer step. Each sees micro_batch x world / sp sequences: P times fewer than without sp."""
    if tokens_per_step <= 0:
        return PLAN["accumulate"]
    micro_step = PLAN["micro_batch"] * PLAN["seq"] * PLAN["world"] // PLAN["sp_size"]
    steps, rest = divmod(tokens_per_step, micro_step)
    if rest or steps < 1:
        sys.exit(
            f"train.py: --tokens-per-step {tokens_per_step} is no multiple of the {micro_step} tokens of a micro-step"
        )
    return steps


# --- data: rows of at most seq tokens, each a list of documents. Arrays: while lists become tensors the GPU waits -----------


def ids_of(numbers):
    return array.array("q", iter(numbers))  # of bytes each is an id, too


def read_texts(paths):
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            if path.endswith(".jsonl"):
                yield from (json.loads(line)["text"] for line in file if line.strip())
            else:
                yield file.read()


def library_bytes(least):
    """At least `least` token ids: the library's sources in a fixed order, again and again when they are short."""
    data = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        data += path.read_bytes()
        if len(data) >= least:
            break
    return bytes(data) * (least // len(data) + 1)


def cut_rows(stream, lengths):
    """Rows of documents of these lengths from one long sequence of ids."""
    at, total = 0, sum(lengths)
    rows = []
    while at + total <= len(stream):
        row = []
        for length in lengths:
            row.append(stream[at : at + length])
            at += length
        rows.append(row)
    return rows


def pack_rows(documents, seq):
    """Whole documents one after another; one that is longer than what is left of the row is cut there."""
    rows, row, room = [], [], seq
    for ids in documents:
        while ids:
            row.append(ids[:room])
            ids = ids[room:]
            room -= len(row[-1])
            if room == 0:
                rows.append(row)
                row, room = [], seq
    return rows + [row] if row else rows


class Rows(Dataset):
    def __init__(self, arguments, rows_needed):
        seq, lengths = PLAN["seq"], PLAN["documents"] or [PLAN["seq"]]
        if not arguments.data:
            self.rows = cut_rows(ids_of(library_bytes(rows_needed * seq)), lengths)
            return
        if arguments.tokenizer:
            tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
            end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
            documents = [ids_of(tokenizer(text)["input_ids"] + end) for text in read_texts(arguments.data)]
        else:
            documents = [ids_of(text.encode()) for text in read_texts(arguments.data)]
        if PLAN["documents"]:
            self.rows = pack_rows(documents, seq)
        else:
            self.rows = cut_rows(ids_of(token for ids in documents for token in ids), lengths)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    """[B, S] ids, positions and labels, S a multiple of sp_size.

    Positions are global (they restart at each document when documents are packed): after the split no rank can know
    them. The first label of each document is ignored, since it would be predicted from the document before it; padding
    is a document of its own and ignored whole.
    """
    multiple = PLAN["sp_size"]
    longest = max(sum(len(ids) for ids in row) for row in rows)
    width = (longest + multiple - 1) // multiple * multiple
    batch = {"input_ids": [], "position_ids": [], "labels": []}
    for row in rows:
        ids, positions, labels = ids_of(()), ids_of(()), ids_of(())
        for document in filter(None, row):
            first = 0 if PLAN["documents"] else len(ids)
            positions.extend(range(first, first + len(document)))
            ids.extend(document)
            labels.append(IGNORED)
            labels.extend(document[1:])
        padding = width - len(ids)
        first = 0 if PLAN["documents"] else len(ids)
        positions.extend(range(first, first + padding))
        ids.extend([0] * padding)
        labels.extend([IGNORED] * padding)
        for name, values in (("input_ids", ids), ("position_ids", positions), ("labels", labels)):
            batch[name].append(torch.frombuffer(values, dtype=torch.int64))
    return {name: torch.stack(values) for name, values in batch.items()}


def forever(loader):
    while True:
        yield from loader


# --- model and loss -------------------------------------------------------------------------------------------------


def load_model(arguments):
    how = {"attn_implementation": PLAN["attention"]}
    how["dtype" if version("transformers") >= (4, 56) else "torch_dtype"] = DTYPES[PLAN["dtype"]]
    if arguments.random_init:
        shape = dict(PLAN["shape"])
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(shape.pop("model_type"), **shape), **how)
    else:
        try:
            model = AutoModelForCausalLM.from_pretrained(arguments.model, **how)
        except OSError as error:
            sys.exit(
                f"train.py: cannot load {arguments.model!r}: {error}\nGive --model DIRECTORY, or --random-init to try the plan"
            )
    model.config.use_cache = False
    if PLAN["checkpointing"] == "full" and hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    elif PLAN["checkpointing"] == "full":  # its name before Transformers 5
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def slice_loss(head, hidden, labels):
    logits = head(hidden).float()
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def tiled_loss(head, hidden, labels):
    """About 1 GiB of fp32 logits at a time, made again in backward."""
    tokens = hidden.shape[1]
    tiles = max(1, math.ceil(4 * hidden.shape[0] * tokens * PLAN["vocab"] / 2**30))
    width = math.ceil(tokens / tiles)
    return torch.stack(
        [
            checkpoint(slice_loss, head, hidden[:, at : at + width], labels[:, at : at + width], use_reentrant=False)
            for at in range(0, tokens, width)
        ]
    ).sum()


def put_loss(model):
    """Make model(input_ids, position_ids, labels) the sum of the token losses of this rank's shard, in the plan's form.

    plain: all logits at once. tiled: some tokens' at a time. fused: Liger's kernel, which never has them whole. The
    model stays itself, no wrapper around it: DeepSpeed reads the head counts off it and gathers its parameters.
    """
    whole, head = model.forward, model.get_output_embeddings()
    if PLAN["loss"] == "fused":
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        fused = LigerFusedLinearCrossEntropyLoss(ignore_index=IGNORED, reduction="sum")
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        value = getattr(model.config, name, None)
        if PLAN["loss"] != "plain" and value not in (None, 1, 1.0):
            sys.exit(f"train.py: {name}={value} changes the logits; loss={PLAN['loss']} here would leave it out")

    def forward(input_ids, position_ids, labels):
        inputs = {"input_ids": input_ids, "position_ids": position_ids, "use_cache": False}
        if PLAN["loss"] == "plain":
            return slice_loss(lambda logits: logits, whole(**inputs).logits, labels)
        hidden = model.base_model(**inputs)[0]
        if PLAN["loss"] == "tiled":
            return tiled_loss(head, hidden, labels)
        return fused(head.weight, hidden.flatten(0, -2), labels.flatten())

    model.forward = forward
    return model


def reduction_divisor(world):
    """What DeepSpeed divides the sum of all ranks' gradients by.

    ZeRO-3 reduce-scatters and divides by all ranks; stages 1 and 2 divide by the data-parallel ranks, world / sp_size
    (deepspeed 0.18.2 to 0.19.8). With a mean that the loss itself takes over the ranks of a sequence this would make
    gradients sp_size times larger in stages 1 and 2, which clipping and grad_norm see.
    """
    return world if PLAN["zero_stage"] == 3 else world // PLAN["sp_size"]


def shifted(batch):
    """Labels of the next token. The sequence split has them already: shifted before the cut, as they must be."""
    if "shift_labels" in batch:
        return batch["shift_labels"]
    return F.pad(batch["labels"], (0, 1), value=IGNORED)[:, 1:].contiguous()


def train_step(accelerator, model, optimizer, batches):
    """One optimizer step. The loss is the mean over the valid tokens of all ranks and all micro-steps together."""
    device, world = accelerator.device, accelerator.num_processes
    count = torch.tensor([sum(int((shifted(batch) != IGNORED).sum()) for batch in batches)], device=device)
    if world > 1:
        dist.all_reduce(count)
    scale = reduction_divisor(world) * len(batches) / max(int(count), 1)  # the engine divides by the micro-steps too
    total = torch.zeros((), device=device)
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(batch["input_ids"].to(device), batch["position_ids"].to(device), shifted(batch).to(device))
            total += loss.detach().float()
            accelerator.backward(loss * scale)
            optimizer.step()
            optimizer.zero_grad()
    if world > 1:
        dist.all_reduce(total)
    return float(total) / max(int(count), 1)


# --- the run --------------------------------------------------------------------------------------------------------


def choose_device(cpu):
    """Accelerate joins DeepSpeed with GPUs alone; for a trial on CPUs its choice of a backend is replaced."""
    if torch.cuda.is_available() and not cpu:
        return
    if not cpu:
        sys.exit("train.py: no GPU is visible here; --cpu tries it on CPUs")
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_CPU)


def check_launch(accelerator):
    """The plan is one of world and sizes: under another launch it would be another experiment."""
    sizes = accelerator.parallelism_config
    sp_size = sizes.sp_size if sizes is not None else 1
    if (accelerator.num_processes, sp_size) != (PLAN["world"], PLAN["sp_size"]):
        sys.exit(
            f"train.py: {accelerator.num_processes} processes with sp_size {sp_size}, planned for {PLAN['world']} with "
            f"{PLAN['sp_size']}; launch it with --config_file accelerate.yaml from its own directory"
        )


def peak(accelerator):
    """What PyTorch allocated of this rank's GPU; on CPUs what of its process was resident."""
    if accelerator.device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB resident"


def one_kernel(device):
    """Whether AdamW goes over weights and states once, in one kernel. None is PyTorch's own choice: before 2.5 the kernel is refused where
    weights are on the host still, as they are here under ZeRO 1 and 2."""
    return True if device.type == "cuda" and version("torch") >= (2, 5) else None


def learning_rate(arguments, step):
    if step < arguments.warmup:
        return arguments.lr * (step + 1) / arguments.warmup
    done = (step - arguments.warmup) / max(arguments.steps - arguments.warmup, 1)
    return arguments.lr * 0.5 * (1 + math.cos(math.pi * min(done, 1)))


def save_model(accelerator, model, directory):
    state = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(directory, state_dict=state)
    accelerator.wait_for_everyone()


def main():
    arguments = parse_arguments()
    steps = accumulation(arguments.tokens_per_step)
    choose_device(arguments.cpu)
    accelerator = Accelerator(
        # False: with a split sequence one batch of the loader is P micro-steps, and its last one is not theirs
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=steps, sync_with_dataloader=False)
    )
    check_launch(accelerator)
    if accelerator.state.deepspeed_plugin is not None:
        accelerator.state.deepspeed_plugin.deepspeed_config["gradient_accumulation_steps"] = steps
    set_seed(arguments.seed)
    model = put_loss(load_model(arguments))
    rows = Rows(arguments, PLAN["world"] * PLAN["micro_batch"] * 4)
    if len(rows) < PLAN["world"] * PLAN["micro_batch"]:
        sys.exit(
            f"train.py: {len(rows)} rows of {PLAN['seq']} tokens are not {PLAN['micro_batch']} for each of {PLAN['world']} ranks"
        )
    loader = DataLoader(
        rows,
        batch_size=PLAN["micro_batch"],
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(arguments.seed),
    )  # the same order under every plan
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=arguments.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=one_kernel(accelerator.device)
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    tokens = PLAN["micro_batch"] * PLAN["seq"] * steps * PLAN["world"] // PLAN["sp_size"]
    accelerator.print(
        f"{parameters:,} parameters, {'random weights' if arguments.random_init else arguments.model}; "
        f"{tokens:,} tokens a step; predicted {PLAN['predicted_step_s']:.3g} s on {PLAN['predicted_on']}, {PLAN['predicted_peak_gib']:.3g} GiB"
    )
    batches = forever(loader)
    for step in range(arguments.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(arguments, step)
        started = time.perf_counter()
        loss = train_step(accelerator, model, optimizer, [next(batches) for _ in range(steps)])
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        accelerator.print(
            f"step {step + 1:5d}  loss {loss:.4f}  grad_norm {float(model.get_global_grad_norm() or 0):.4f}  {seconds:.3f} s  "
            f"{tokens / seconds / PLAN['world']:.1f} tokens/s/device  peak {peak(accelerator)}"
        )
    if arguments.save:
        save_model(accelerator, model, arguments.save)
    accelerator.end_training()
    if dist.is_initialized():
        dist.destroy_process_group()
    if arguments.cpu:  # Gloo's threads live on, and one that frees a tensor while Python ends aborts the process
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
