"""scripts/figures.d/emitted.py -- parts of scripts/gpu-figures that run what `tune` emits for Accelerate, and set its steps beside the
predicted ones; on GPUs or, with a small model, on CPUs. Needs accelerate and deepspeed beside the PyTorch of --torchrun."""

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
MODEL = {
    "cuda": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32000},
    "cpu": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512},
}  # fmt: skip
ASKED = {"cuda": "--seq 32k --effort quick", "cpu": "--seq 512 --effort estimate"}
LINE = re.compile(r"step +(\d+) .* ([0-9.]+) s  [0-9.]+ tokens/s/device  peak (.*)")


class Emitted:
    """A document for each sp."""

    def __init__(self, name, ranks, sizes):
        self.names, self.ranks, self.sizes = [name], ranks, sizes

    def path(self, options):
        return os.path.join(options.out, self.names[0] + ".jsonl")

    def measure(self, options, folder):
        sptune = os.path.abspath(options.sptune) if os.sep in options.sptune else options.sptune
        with open(os.path.join(folder, "emitted.json"), "w", encoding="utf-8") as file:
            json.dump(SHAPE | MODEL[options.device], file)
        with whole(self.path(options)) as put:
            for sp in self.sizes:
                words = f"tune --model emitted.json --ranks {self.ranks} --sp {sp} --device {options.device} {ASKED[options.device]} --out sp{sp} --force --json"
                (answer,) = documents(words, [printed([sptune, *words.split()], folder, (0,))])
                told = {key: answer[key] for key in ("predicted", "tokens_per_s_per_device")} | {"peak_bytes": answer["memory"]["peak_bytes"], "plan": answer["plan"]["text"]}
                steps = self.steps(options, os.path.join(folder, f"sp{sp}"))
                put({"sp": sp, "command": " ".join(["sptune", *words.split()]), "tune": told, "steps": steps})

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


RUNS = {"emitted": Emitted("emitted", 2, (1, 2)), "emitted-1": Emitted("emitted-1", 1, (1,))}
