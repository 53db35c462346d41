#!/usr/bin/env python3
"""scripts/peers/attention.py -- times the attention of the PyTorch that is installed here, and writes sptune.samples/1.

    attention.py --seq 8192,32768 --heads 16 --kv-heads 4 --head-dim 128 --dtype bf16 --out attention.json

Rows of sptune's subject `attention`, one per kernel, shape and direction. `attention` in a row's key is a name that Accelerate is told:
    sdpa                  scaled_dot_product_attention, whatever it dispatches to (`kernel` says what)
    flash_attention_2     flash_attn;  flash_attention_3  flash_attn_interface, or kernels-community/flash-attn3 from the hub's local cache
and, to explain sdpa, sdpa-flash, sdpa-cudnn, sdpa-efficient, sdpa-math: one of its backends each.

Tensors are views of [batch][seq][heads][head_dim], as a model's projections leave them. Heads are those of one rank after the
exchange. The backward is timed alone: autograd.grad of a kept graph. Each kernel is held against the plain formula in double precision
first. Iterations of all kernels of a shape alternate in random order, in blocks. On a GPU a spin holds the stream while the host
launches, and events take the time; `cold` walks through copies beyond the cache. What is not installed or refuses is a waived row.

On a GPU each block follows about 120 ms of the kernel's own iterations, untimed, so that it runs at the clocks that the power limit
leaves a long run, not at those of a GPU that was idle (load.py). `load_us` of the conditions is the shortest of these loads; 0 where an
iteration takes 1.2 s and more.

Exit: 0 done; 1 a kernel computed something wrong; 2 wrong usage; 3 no row was timed; 77 no PyTorch.
"""

import argparse
import datetime
import json
import os
import random
import shlex
import shutil
import subprocess
import sys

from attention_kernels import BACKENDS, Cannot, Torch, Wrong

SCHEMA = "sptune.samples/1"
KERNELS = ["sdpa", "flash_attention_2", "flash_attention_3", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient"]
DIRECTIONS = ("fwd", "bwd")
WARMUPS = 3
BLOCK = 5  # iterations of one kernel before another has its turn


# ---- what is asked ----


def numbers(text):
    """4096, 128k: k and M are 1024 and 1024 x 1024, as in sptune."""
    out = []
    for word in text.split(","):
        unit = {"k": 1 << 10, "M": 1 << 20}.get(word[-1:], 1)
        digits = word[:-1] if unit > 1 else word
        if not digits.isdigit() or int(digits) < 1:
            raise argparse.ArgumentTypeError(f"'{word}'; right would be such as 4096 or 128k")
        out.append(int(digits) * unit)
    return out


def one_of(known):
    def read(text):
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError(f"'{word}'; right would be some of {','.join(known)}")
        return text.split(",")

    return read


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq", type=numbers, default=[8192], metavar="LIST", help="tokens [8192]")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16, help="query heads of one rank [16]")
    parser.add_argument("--kv-heads", type=int, help="[heads]")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16")
    mask = parser.add_mutually_exclusive_group()
    mask.add_argument("--causal", dest="causal", action="store_const", const=1, default=1, help="[yes]")
    mask.add_argument("--full", dest="causal", action="store_const", const=0, help="no mask")
    parser.add_argument("--direction", type=one_of(DIRECTIONS), default=list(DIRECTIONS), metavar="LIST", help="fwd,bwd [both]")
    parser.add_argument("--kernels", type=one_of(["sdpa", "flash_attention_2", "flash_attention_3", *BACKENDS]), default=KERNELS, metavar="LIST", help=",".join(KERNELS))
    parser.add_argument("--buffers", choices=("hot", "cold"), default="hot")
    parser.add_argument("--samples", type=int, default=30, help="iterations per row, 10 or more [30]")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, help="of the CPU [PyTorch's own]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sptune", metavar="PROGRAM", help="is asked which machine this is [$SPTUNE, else the one near this file]")
    parser.add_argument("--out", metavar="FILE", help="[stdout]")
    options = parser.parse_args(words)
    options.kv_heads = options.kv_heads or options.heads
    for name in ("batch", "heads", "kv_heads", "head_dim"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}; right would be 1 or more")
    if options.heads % options.kv_heads:
        parser.error(f"--heads {options.heads} is no multiple of --kv-heads {options.kv_heads}")
    if options.samples < 10:
        parser.error(f"--samples {options.samples}; right would be 10 or more")
    return options


# ---- rows ----


def flops(options, seq, direction):
    """As sptune counts: pairs of query and key that the mask leaves, two products, the backward 2.5 times that."""
    pairs = seq * (seq + 1) / 2 if options.causal else seq * seq
    return (2.5 if direction == "bwd" else 1) * 4.0 * options.batch * options.heads * options.head_dim * pairs


def row(machine, options, seq, name, direction, kernel, versions):
    """A waived row, until it has times."""
    return {
        "machine": machine,
        "key": {
            "subject": "attention", "ranks": 1, "sp": 1, "heads": options.heads, "kv_heads": options.kv_heads,
            "head_dim": options.head_dim, "seq": seq, "batch": options.batch, "dtype": options.dtype, "attention": name,
            "direction": direction, "causal": options.causal, "window": 0, "docs": "none", "timing": "stream",
            "buffers": options.buffers,
        },
        "conditions": {}, "times_us": [], "bytes": None, "transport": "", "outcome": "waived", "rule": "not_measured", "why": "",
        "verified": False, "scaled": False, "scale": 1.0, "kernel": kernel[:63], "versions": versions,
        "flops": flops(options, seq, direction), "group": 1,
        "measured_at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }  # fmt: skip


def fill(made, times, conditions):
    middle = sorted(times)
    half = len(times) // 2
    median = middle[half] if len(times) % 2 else (middle[half - 1] + middle[half]) / 2
    others = conditions.get("gpu_others", 0)
    made.update(times_us=times, median_us=median, conditions=conditions, verified=True)
    made.update(tflops=made["flops"] / median / 1e6, outcome="ok", rule="ok", why="")
    if others or conditions.get("held_by_heat") or conditions.get("held_by_board"):
        made.update(outcome="waived", rule="tainted", why="the GPU was slowed down, or not ours alone")


def waive(made, rule, why, failed=False):
    made.update(outcome="failed" if failed else "waived", rule="ok" if failed else rule, why=" ".join(str(why).split())[:220])


def document(machine, options, rows, version, started):
    return {
        "schema": SCHEMA, "version": version, "command": shlex.join(["attention.py", *sys.argv[1:]]), "started": started,
        "seed": options.seed, "machine": machine, "warnings": [], "samples": rows,
    }  # fmt: skip


def measure(device, options, machine, say=lambda _: None):
    """Rows of all shapes. `device` prepares kernels and times them: Torch below, or what a test puts in its place."""
    rows, draw = [], random.Random(options.seed)
    for seq in options.seq:
        todo = []
        for name in options.kernels:
            for direction in options.direction:
                made = row(machine, options, seq, name, direction, "", device.versions)
                rows.append(made)
                try:
                    case = device.prepare(name, options, seq, direction)
                    made["kernel"] = case.about[:63]
                    todo.append((made, case))
                except Cannot as why:
                    waive(made, why.rule, why)
                except ArithmeticError as why:
                    waive(made, "ok", why, failed=True)
        alternate(device, options, todo, draw)
        for made in rows[-len(options.kernels) * len(options.direction) :]:
            key, value = made["key"], f"{made.get('median_us', 0):.1f} us" if made["times_us"] else made["why"]
            say(f"{key['attention']:<18} {key['direction']} S={seq:<8} {made['outcome']:<7} {value}")
    return rows


def alternate(device, options, todo, draw):
    """Blocks of all cases in random order until each has its samples."""
    times = {id(made): [] for made, _ in todo}
    seen = {id(made): {} for made, _ in todo}
    while todo:
        draw.shuffle(todo)
        for made, case in list(todo):
            mine = times[id(made)]
            try:
                mine += device.time(case, min(BLOCK, options.samples - len(mine)), WARMUPS if not mine else 1)
            except Cannot as why:
                waive(made, why.rule, why)
                todo.remove((made, case))
                continue
            worst(seen[id(made)], device.conditions())
            if len(mine) == options.samples:
                fill(made, mine, {**seen[id(made)], **case.conditions, "warmups": WARMUPS, "blocks": -(-len(mine) // BLOCK)})
                todo.remove((made, case))


def worst(kept, now):
    for name, value in now.items():
        lower = name.endswith("_mhz")
        kept[name] = value if name not in kept else (min if lower else max)(kept[name], value)


# ---- the whole ----


def ask_sptune(program):
    """(fingerprint of this machine, version); empty where there is no sptune to ask."""
    here = os.path.dirname(os.path.abspath(__file__))
    near = [os.path.join(here, p) for p in ("../../../bin/sptune", "../../build/default/src/cli/sptune", "../../build/gpu/src/cli/sptune")]
    program = program or os.environ.get("SPTUNE")
    for path in [program] if program else [*near, shutil.which("sptune")]:
        if path and os.access(path, os.X_OK):
            done = subprocess.run([path, "topo", "--json"], capture_output=True, text=True)
            if done.returncode == 0:
                said = json.loads(done.stdout)
                return said["fingerprint"], said["version"]
            raise Wrong(f"{path} topo: exit {done.returncode}: {done.stderr.strip()}")
    if program:
        raise Wrong(f"{program}, of --sptune or SPTUNE, is no program; right would be one that is built")
    print("attention.py: no sptune to ask which machine this is; rows name none (--sptune PROGRAM)", file=sys.stderr)
    return "", ""


def main():
    options = arguments()
    try:
        device = Torch(options)
    except ImportError:
        print("attention.py: no PyTorch in", sys.executable, file=sys.stderr)
        return 77
    started = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    machine, version = ask_sptune(options.sptune)
    rows = measure(device, options, machine, lambda line: print(line, file=sys.stderr, flush=True))
    text = json.dumps(document(machine, options, rows, version, started), indent=1) + "\n"
    if options.out:
        with open(options.out + ".unfinished", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(options.out + ".unfinished", options.out)
    else:
        sys.stdout.write(text)
    outcomes = [made["outcome"] for made in rows]
    return 1 if "failed" in outcomes else 0 if "ok" in outcomes else 3


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as why:
        print("attention.py:", why, file=sys.stderr)
        sys.exit(2)
