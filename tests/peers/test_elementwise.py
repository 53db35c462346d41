#!/usr/bin/env python3
"""tests/peers/test_elementwise.py -- scripts/peers/elementwise.py: what it refuses, and, where PyTorch and Transformers are installed, that its
counts are those of target accelerate."""

import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
SCRIPT = os.path.join(ROOT, "scripts", "peers", "elementwise.py")


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)


def expect(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")


def coefficients():
    """{stored, fp32} of each way, as the source has them."""
    with open(os.path.join(ROOT, "src", "sp", "target_accelerate.c"), encoding="utf-8") as file:
        text = file.read()
    number = r"([0-9.]+)"
    found = {}
    for name in ("norm", "turn", "act", "gate", "sum"):
        match = re.search(rf"\.{name} = {{{{{number}, {number}}}, {{{number}, {number}}}}}", text)
        expect(match, f".{name} in target_accelerate.c")
        found[name] = [float(x) for x in match.groups()]
    plain = re.search(rf"\[PLAN_LOSS_PLAIN\] = {{{number}, {number}}}", text)
    return found, [float(x) for x in plain.groups()]


def table(text):
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"[0-9.]*", cells[1]):
            rows[cells[0]] = [float(cell or 0) for cell in cells[1:]]
    return rows


def main():
    wrong = run("--vocab", "96")
    expect(wrong.returncode == 2 and "another size" in wrong.stderr, "a vocabulary of the hidden size is refused")
    done = run()
    if done.returncode == 77:
        expect("right would be" in done.stderr, "what is missing is said")
        print("skipped:", done.stderr.strip())
        return 77
    expect(done.returncode == 0, done.stderr)
    told, (found, plain) = table(done.stdout), coefficients()
    found["inner"] = [a + b for a, b in zip(found.pop("act"), found.pop("gate"))]
    found["turned"] = found.pop("turn")
    for kind, want in found.items():
        apart = max(abs(a - b) for a, b in zip(told[kind], want))
        expect(apart <= 0.6, f"{kind}: {told[kind]}, in the source {want}")
    logits = [a + b for a, b in zip(told["logits"], told["logits, again"])]
    expect(abs(logits[0] + logits[2] - plain[0]) <= 0.1 and abs(logits[1] + logits[3] - plain[1]) <= 0.1, f"logits: {logits}, {plain}")
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
