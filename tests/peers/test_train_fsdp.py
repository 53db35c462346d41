"""tests/peers/test_train_fsdp.py -- the PyTorch trainer takes the steps of plain transformers on one process, however it is split.

Also holds tests/train/oracle against what scripts/peers/oracle.py computes again. Skipped (77) without PyTorch or transformers;
FIGURES_PYTHON names the Python that has them.
"""

import json
import os
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.path.join(HERE, "..", "..", "scripts", "peers")
ORACLE = os.path.join(HERE, "..", "train", "oracle")
PYTHON = os.environ.get("FIGURES_PYTHON") or os.path.join(HERE, "..", "..", ".venv", "bin", "python")
STEPS, BATCH, SEQ, LR = 3, 4, 32, 1e-2
PLAIN = f"""
import sys, types
import torch, transformers
sys.path.insert(0, sys.argv[1])
import train_fsdp as peer
options = types.SimpleNamespace(seq={SEQ}, seed=1, config=sys.argv[2], layers=1)
torch.manual_seed(options.seed)
config = peer.config_of(options)
model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).train()
optimizer = torch.optim.AdamW(model.parameters(), lr={LR}, weight_decay=0.1)
for step in range(1, {STEPS} + 1):
    rows = [peer.sequence(step, place, options, config.vocab_size, "cpu") for place in range({BATCH})]
    ids, labels = (torch.stack(t) for t in zip(*rows))
    loss = model(ids, labels=ids, shift_labels=labels, use_cache=False).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), peer.CLIP)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item(), norm.item())
"""


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def train(world, *options, model="llama"):
    """Exit status of the first rank that failed, or 0, with rank 0's rows."""
    meet = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(), "OMP_NUM_THREADS": "1"}
    words = [PYTHON, "-B", os.path.join(PEERS, "train_fsdp.py"), "--device", "cpu", "--config", os.path.join(ORACLE, model)]
    words += ["--layers", "1", "--seq", str(SEQ), "--steps", str(STEPS), "--lr", str(LR), *map(str, options)]
    ranks = []
    for rank in range(world):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen(words, env=os.environ | meet | place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        said = [r.communicate(timeout=200) for r in ranks]
    finally:
        for r in ranks:
            r.kill()
    status = next((r.returncode for r in ranks if r.returncode), 0)
    if status not in (0, 2):
        sys.exit(f"FAILED: {words}: exit {status}\n{said[0][1][-3000:]}")
    return status, [json.loads(line) for line in said[0][0].splitlines()], said[0][1]


def steps(world, *options, model="llama"):
    status, rows, log = train(world, *options, "--batch", BATCH, model=model)
    assert status == 0, log
    assert rows[0]["row"] == "run" and rows[0]["ranks"] == world and rows[0]["layers"] == 1, rows
    rows = rows[1:]
    assert [r["step"] for r in rows] == list(range(1, STEPS + 1)), rows
    assert all(r["step_us"] > 0 and r["tokens_per_s"] > 0 and r["peak_bytes"] > 0 for r in rows), rows
    return [(r["loss"], r["grad_norm"]) for r in rows]


def plain(model):
    words = [PYTHON, "-B", "-c", PLAIN, PEERS, os.path.join(ORACLE, model)]
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=200).stdout
    return [tuple(map(float, line.split())) for line in said.splitlines()]


def alike(what, got, wanted, loss, norm):
    for step, (g, w) in enumerate(zip(got, wanted, strict=True), 1):
        if abs(g[0] - w[0]) > loss * w[0] or abs(g[1] - w[1]) > norm * w[1]:
            sys.exit(f"FAILED: {what}: step {step}: loss and grad_norm {g}; plain transformers {w}")


def refused(word, *options):
    status, rows, log = train(1, *options)
    if status != 2 or rows or word not in log:
        sys.exit(f"FAILED: {options}: exit {status}, {log!r}; right would be 2, naming {word}")


def main():
    if subprocess.run([PYTHON, "-c", "import torch, transformers, safetensors"], capture_output=True).returncode:
        print(f"no PyTorch with transformers in {PYTHON} (FIGURES_PYTHON names another)")
        sys.exit(77)
    llama = plain("llama")
    for world, sp in ((2, 1), (2, 2), (4, 4)):  # 2 KV heads: of 4 ranks two have the same
        alike(f"{world} ranks, sp {sp}", steps(world, "--sp", sp, "--dtype", "fp32"), llama, 1e-5, 1e-4)
    alike("qwen2", steps(2, "--sp", 2, "--dtype", "fp32", model="qwen2"), plain("qwen2"), 1e-5, 1e-4)
    alike("bf16", steps(2, "--sp", 2, "--dtype", "bf16"), llama, 1e-2, 5e-2)
    refused("--sp 2 of 1 ranks", "--sp", 2)
    refused("--layers 3", "--layers", 3)
    refused("nowhere", "--config", "nowhere")
    subprocess.run([PYTHON, "-B", os.path.join(PEERS, "oracle.py"), "--check"], check=True, timeout=200)
    print("the trainer takes plain transformers' steps at every split; the oracle is what it was")


if __name__ == "__main__":
    main()
