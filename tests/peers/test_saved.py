"""tests/peers/test_saved.py SPTUNE -- transformers loads what sptune saves: every tensor under its name, and the loss of a row is the same.

Skipped (77) without PyTorch or transformers; FIGURES_PYTHON names the Python that has them.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ORACLE = os.path.join(HERE, "..", "train", "oracle")
PYTHON = os.environ.get("FIGURES_PYTHON") or os.path.join(HERE, "..", "..", ".venv", "bin", "python")
SEQ, STEPS = 24, 2
LOSS = """
import sys
import torch, transformers
model, told = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
row = torch.tensor([[int(word) for word in sys.argv[2:]]])
print(model(row[:, :-1], labels=row[:, :-1], shift_labels=row[:, 1:], use_cache=False).loss.item())
"""


def train(sptune, folder, *words):
    command = [sptune, "train", *"--device cpu --ranks 2 --sp 2 --micro-batch 1 --tokens u16 --json --quiet --progress none".split(), "--seq", str(SEQ), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return json.loads(done.stdout)["steps"]


def one(sptune, family):
    first = os.path.join(ORACLE, family)
    with open(os.path.join(first, "config.json"), encoding="utf-8") as file:
        vocab = json.load(file)["vocab_size"]
    row = [(7 * i * i + i) % vocab for i in range(SEQ + 1)]  # one row, whatever the order of rows is
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "row.bin"), "wb") as file:
            file.write(struct.pack(f"<{len(row)}H", *row))
        given = ["--data", "row.bin", "--epochs", "9"]
        train(sptune, folder, *given, "--model", first, "--from", os.path.join(first, "model.safetensors"), "--steps", str(STEPS), "--save", "saved")
        saved = os.path.join(folder, "saved", f"step-{STEPS}")
        ours = train(sptune, folder, *given, "--model", saved, "--from", os.path.join(saved, "model.safetensors"), "--steps", "1")[0]["loss"]
        done = subprocess.run([PYTHON, "-c", LOSS, saved, *map(str, row)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        theirs = float(done.stdout)
    assert abs(ours - theirs) <= 1e-5 * theirs, (family, ours, theirs)
    print(f"{family}: loss {ours:.6f}, transformers {theirs:.6f}")


def main():
    try:
        subprocess.run([PYTHON, "-c", "import torch, transformers"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print("skipped: no PyTorch with transformers")
        sys.exit(77)
    for family in ("llama", "qwen2", "qwen3", "mistral"):
        one(os.path.abspath(sys.argv[1]), family)


if __name__ == "__main__":
    main()
