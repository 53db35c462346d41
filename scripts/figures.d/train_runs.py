"""scripts/figures.d/train_runs.py -- parts of scripts/gpu-figures that are runs of `sptune train` in whole, on GPUs or, with the toy, on CPUs:
plans held to --verify, and runs that are resumed. A part has names (of its files), measure and show."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys

from gpu_rows import Unmeasured, head, read_rows

MODEL = {"cuda": "--model llama-small --seq 4k", "cpu": "--model toy --seq 256"}

# What each run is called, and how it differs. All of a plan's gradients are held against those of one rank.
PLANS = (
    ("ulysses", "--sp 2"),
    ("ring", "--sp 2 --method ring"),
    ("split_gather", "--sp 2 --method split_gather"),
    ("tp 2", "--tp 2"),
    ("dp_shard 2", "--sp 1 --dp-shard 2 --zero 3"),
    ("dp_replicate 2", "--sp 1 --dp-replicate 2"),
    ("packed, ulysses", "--sp 2 --separator \\n"),
    ("packed, ring", "--sp 2 --method ring --separator \\n"),
    ("checkpoints offloaded", "--sp 2 --checkpointing offload"),
    ("optimizer offloaded", "--sp 2 --offload optimizer"),
    ("MLP in tiles", "--sp 2 --mlp tiled"),
    ("all savers", "--sp 2 --checkpointing offload --offload optimizer --mlp tiled"),
)

FOUR = (
    ("ulysses, sp 4", "--sp 4"),
    ("ulysses+ring, sp 4", "--sp 4 --method ulysses+ring"),
    ("ulysses, sp 2, tp 2", "--sp 2 --tp 2"),
    ("ulysses, sp 2, dp_shard 2", "--sp 2 --dp-shard 2 --zero 3"),
)
FOUR_MORE = (
    ("ulysses, sp 2, dp_replicate 2", "--sp 2 --dp-replicate 2 --zero 3"),
    ("split_gather, sp 2, dp_shard 2", "--sp 2 --method split_gather --dp-shard 2 --zero 3"),
    ("packed, ulysses, two micro-steps", "--sp 4 --separator \\n --accumulate 2"),
    ("packed, ulysses+ring, two micro-steps", "--sp 4 --method ulysses+ring --separator \\n --accumulate 2"),
)
FP32 = [(name, plan + " --dtype fp32") for name, plan in PLANS[:6]]
NOT_ON_GPUS = ("--sp 2 --method ring --dtype fp32",)  # no kernel of theirs in fp32 takes parts of the keys


def command(options, ranks, rest):
    """It runs elsewhere, where the models' folders are."""
    sptune = os.path.abspath(options.sptune) if os.sep in options.sptune else options.sptune
    shared = " --oversubscribe" if options.oversubscribe else ""
    words = f"{MODEL[options.device]} --device {options.device} --ranks {ranks}{shared} --micro-batch 1 {rest}"
    return [sptune, "train", *words.split()]


def printed(words, folder, good):
    print("gpu-figures:", *words, file=sys.stderr, flush=True)
    done = subprocess.run(words, stdout=subprocess.PIPE, cwd=folder)
    if done.returncode not in good or not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, words)
    return done.stdout


def documents(words, text):
    try:
        return [json.loads(line) for line in text]
    except ValueError as why:
        raise Unmeasured(f"{' '.join(words)} printed no document: {why}") from None


@contextlib.contextmanager
def whole(path):
    """Takes a document a line; has its name when the last one is there."""
    with open(path + ".unfinished", "w", encoding="utf-8") as file:

        def put(document):
            file.write(json.dumps(document) + "\n")
            file.flush()

        yield put
    os.replace(path + ".unfinished", path)


class Verified:
    """A document a plan, in their order; one whose gradients are wrong has one, too."""

    def __init__(self, name, plans, ranks=2):
        self.names, self.plans, self.ranks = [name], plans, ranks

    def path(self, options):
        return os.path.join(options.out, self.names[0] + ".jsonl")

    def plans_on(self, device):
        return [(what, plan) for what, plan in self.plans if device == "cpu" or plan not in NOT_ON_GPUS]

    def measure(self, options, folder):
        with whole(self.path(options)) as put:
            for _, plan in self.plans_on(options.device):
                words = command(options, self.ranks, f"--verify --json {plan}")
                put(*documents(words, [printed(words, folder, (0, 1))]))

    def show(self, options):
        told, name = read_rows(self.path(options)), os.path.basename(self.path(options))
        plans = self.plans_on("cpu" if told and " --device cpu " in told[0]["command"] else "cuda")
        if len(told) != len(plans):
            raise Unmeasured(f"{name} has {len(told)} rows of {len(plans)} plans")
        head(f"train --verify, {self.ranks} ranks", "loss off by", "allowed", "gradients off by", "allowed", "")
        for (what, plan), row in zip(plans, told):
            if shlex.split(row["command"].partition(" --json ")[2]) != plan.split():
                raise Unmeasured(f"{name} has '{row['command']}' in the place of {what}, {plan}")
            v = row["verify"]
            pairs = [(v[key], v[key + "_allowed"]) for key in ("loss_error", "grad_error")]
            verdict = "met" if all(error <= most for error, most in pairs) else "missed"
            print("| " + " | ".join([what, *(f"{error:.1e} | {most:.1e}" for error, most in pairs), verdict]) + " |")


class Resumed:
    """STEPS of them whole, twice, and those after SAVED once more, from the second's checkpoint: the same losses and gradient norms?"""

    STEPS, SAVED = 12, 8
    names = ["resumed"]
    KERNELS = {"cuda": ("cudnn", "flash2"), "cpu": ("cpu",)}

    def path(self, options):
        return os.path.join(options.out, self.names[0] + ".jsonl")

    def steps(self, options, folder, kernel, rest):
        words = command(options, 2, f"--sp 2 --zero 3 --attention {kernel} --steps {self.STEPS} --jsonl{rest}")
        rows = documents(words, printed(words, folder, (0,)).splitlines())
        keys = ("step", "loss", "grad_norm")
        told = " ".join(["sptune", *words[1:]])
        return {"attention": kernel, "command": told, "steps": [{key: row[key] for key in keys} for row in rows if "step" in row]}

    def measure(self, options, folder):
        with whole(self.path(options)) as put:
            for kernel in self.KERNELS[options.device]:
                put(self.steps(options, folder, kernel, ""))
                put(self.steps(options, folder, kernel, f" --save kept --every {self.SAVED}"))
                shutil.rmtree(os.path.join(folder, "kept", f"step-{self.STEPS}"))
                put(self.steps(options, folder, kernel, " --save kept --resume"))
                shutil.rmtree(os.path.join(folder, "kept"))

    def show(self, options):
        told = read_rows(self.path(options))
        if not told or len(told) % 3:
            raise Unmeasured(f"{os.path.basename(self.path(options))} has {len(told)} runs, not three of each kernel")
        head("the same loss and gradient norm, to the last digit", "steps", "of two whole runs", "loss apart", f"resumed from step {self.SAVED} of the second", "loss apart")
        for first, second, resumed in zip(told[::3], told[1::3], told[2::3]):
            again = [self.same(first, second), self.same(second, resumed)]
            print(f"| {first['attention']} | {len(first['steps'])} | " + " | ".join(f"{n} of {of} | {apart:.1e}" for n, of, apart in again) + " |")

    @staticmethod
    def same(first, other):
        """How many steps, of how many, and the largest part of a loss by which the two are apart."""
        if first["attention"] != other["attention"] or not other["steps"]:
            raise Unmeasured(f"'{other['command']}' is no run of {first['attention']} with steps")
        by_step = {row["step"]: row for row in first["steps"]}
        pairs = [(by_step[row["step"]], row) for row in other["steps"]]
        return sum(a == b for a, b in pairs), len(pairs), max(abs(a["loss"] / b["loss"] - 1) for a, b in pairs)


RUNS = {
    "verify": Verified("verify-plans", PLANS),
    "verify-fp32": Verified("verify-fp32", FP32),
    "verify-4": Verified("verify-4", FOUR, ranks=4),
    "verify-4-more": Verified("verify-4-more", FOUR_MORE, ranks=4),
    "resume": Resumed(),
}
