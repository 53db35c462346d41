"""scripts/figures.d/emitted.py -- parts of scripts/gpu-figures that set steps beside what `tune` predicted of them: those of what it emits
for Accelerate, which needs accelerate and deepspeed beside the PyTorch of --torchrun, and those of our own harness (`tune --prove`). On GPUs
or, with a small model, on CPUs."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys

from gpu_rows import Unmeasured, head, read_rows
from train_runs import documents, printed, whole

STEPS, FIRST = 8, 3  # steps taken; the first that counts: before it memory is taken and libraries choose
SHAPE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 1 << 17, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
NARROW = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32000}
WIDE = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256}  # of Llama-3-8B's layers
TOY = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512}
ASKED = {"cuda": "--seq 32k --effort quick", "cpu": "--seq 512 --effort estimate"}
LINE = re.compile(r"step +(\d+) .* ([0-9.]+) s  [0-9.]+ tokens/s/device  peak (.*)")


class Tuned:
    """What one part asks of `tune`: model, ranks, and where its answer is kept."""

    def __init__(self, name, ranks, model):
        self.names, self.ranks, self.model = [name], ranks, model

    def path(self, options):
        return os.path.join(options.out, self.names[0] + ".jsonl")

    def tune(self, options, folder, rest):
        """The command and its document."""
        sptune = os.path.abspath(options.sptune) if os.sep in options.sptune else options.sptune
        with open(os.path.join(folder, "tuned.json"), "w", encoding="utf-8") as file:
            json.dump(SHAPE | (self.model if options.device == "cuda" else TOY), file)
        words = f"tune --model tuned.json --ranks {self.ranks} --device {options.device} {ASKED[options.device]} {rest} --force --json"
        (answer,) = documents(words, [printed([sptune, *words.split()], folder, (0,))])
        return "sptune " + words, answer


class Emitted(Tuned):
    """A document for each sp."""

    def __init__(self, name, ranks, sizes, model=NARROW):
        super().__init__(name, ranks, model)
        self.sizes = sizes

    def measure(self, options, folder):
        with whole(self.path(options)) as put:
            for sp in self.sizes:
                command, answer = self.tune(options, folder, f"--sp {sp} --out sp{sp}")
                told = {key: answer[key] for key in ("predicted", "tokens_per_s_per_device")} | {"peak_bytes": answer["memory"]["peak_bytes"], "plan": answer["plan"]["text"]}
                steps = self.steps(options, os.path.join(folder, f"sp{sp}"))
                put({"sp": sp, "command": command, "tune": told, "steps": steps})

    @staticmethod
    def steps(options, folder):
        """Of launch.sh, with the programs of that PyTorch first on the path."""
        words = ["./launch.sh", "--steps", str(STEPS)]
        found = shutil.which(options.torchrun)
        path = os.pathsep.join([*([os.path.dirname(os.path.abspath(found))] if found else []), os.environ.get("PATH", "")])
        print("gpu-figures:", *words, file=sys.stderr, flush=True)
        done = subprocess.run(words, stdout=subprocess.PIPE, cwd=folder, env=os.environ | {"PATH": path}, text=True)
        if done.returncode != 0:
            raise subprocess.CalledProcessError(done.returncode, words)
        steps = [{"step": int(n), "s": float(s), "peak": peak} for n, s, peak in (m.groups() for m in map(LINE.match, done.stdout.splitlines()) if m)]
        if len(steps) != STEPS:
            raise Unmeasured(f"launch.sh told {len(steps)} steps of {STEPS}")
        return steps

    def show(self, options):
        told = read_rows(self.path(options))
        if [row["sp"] for row in told] != list(self.sizes):
            raise Unmeasured(f"{os.path.basename(self.path(options))} has no row for each of sp {self.sizes}")
        head(f"what tune emits, {self.ranks} rank{'s' if self.ranks > 1 else ''}", "predicted ms", "95 %", "measured ms", "measured / predicted", "peak")
        speed = []
        for row in told:
            predicted, times = row["tune"]["predicted"], [step["s"] for step in row["steps"] if step["step"] >= FIRST]
            median, step = statistics.median(times) * 1e3, predicted["step_us"] / 1e3
            interval = [predicted["interval"][key] / 1e3 for key in ("lo_us", "hi_us")]
            print(f"| sp={row['sp']} | {step:.0f} | [{interval[0]:.0f}..{interval[1]:.0f}] | {median:.0f} | {median / step:.2f} | {row['steps'][-1]['peak']} |")
            speed.append((row["tune"]["tokens_per_s_per_device"], row["tune"]["tokens_per_s_per_device"] * step / median))
        for (predicted, measured), row in list(zip(speed, told))[1:]:
            print(f"| tokens/s, sp={row['sp']} / sp={told[0]['sp']} | {predicted / speed[0][0]:.2f} | | {measured / speed[0][1]:.2f} | | |")


class Proved(Tuned):
    """One document: the steps that winner and runner-up took by our harness."""

    def measure(self, options, folder):
        command, answer = self.tune(options, folder, "--target sptune --prove --out proved")
        with whole(self.path(options)) as put:
            put({"command": command, "source": answer["predicted"]["source"], "proofs": [proof | {"plan": proof["plan"]["text"]} for proof in answer["proofs"]]})

    def show(self, options):
        (told,) = read_rows(self.path(options)) or ({"proofs": []},)
        if not told["proofs"]:
            raise Unmeasured(f"{os.path.basename(self.path(options))} has no steps")
        head(f"our harness, {self.ranks} rank{'s' if self.ranks > 1 else ''}", "predicted ms", "measured ms", "measured / predicted", "memory predicted GiB", "measured")
        for proof in told["proofs"]:
            ms = [proof[name] / 1e3 for name in ("predicted_us", "measured_us")]
            gib = [proof[name] / 2**30 for name in ("predicted_peak_bytes", "measured_bytes")]
            print(f"| {proof['plan'].partition(' zero=')[0]} | {ms[0]:.0f} | {ms[1]:.0f} | {ms[1] / ms[0]:.2f} | {gib[0]:.1f} | {gib[1]:.1f} |")


RUNS = {
    "emitted": Emitted("emitted", 2, (1, 2)),
    "emitted-1": Emitted("emitted-1", 1, (1,)),
    "emitted-wide-1": Emitted("emitted-wide-1", 1, (1,), WIDE),
    "proved-1": Proved("proved-1", 1, WIDE),
}
