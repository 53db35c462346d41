"""scripts/peers/attention.py: the rows it writes, with kernels and a clock that are put in place of PyTorch's."""

import contextlib
import io
import json
import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEERS = os.path.join(ROOT, "scripts", "peers")
sys.path.insert(0, PEERS)

import attention  # noqa: E402
from attention_kernels import Cannot, Case  # noqa: E402

# results/sample_json.c reads these, and refuses a key with any other field.
KEY = {"subject", "ranks", "sp", "heads", "kv_heads", "head_dim", "seq", "batch", "dtype", "attention", "direction", "causal",
       "window", "docs", "timing", "buffers"}  # fmt: skip
RULES = {"absent", "kernel_cannot", "memory", "tainted", "not_measured", "ok"}


class Standin:
    """sdpa takes 100 us forward and 300 backward; flash_attention_2 is absent, 3 wrong, sdpa-cudnn refuses when timed."""

    versions = {"torch": "0"}

    def __init__(self, **conditions):
        self.said, self.turns = conditions, []

    def prepare(self, name, options, seq, direction):
        if name == "flash_attention_2":
            raise Cannot("absent", "no module flash_attn")
        if name == "flash_attention_3":
            raise ArithmeticError("dq is off")
        return Case("stand-in " + "x" * 100, [(name, direction)], {"copies": 1})

    def time(self, case, iterations, warmups):
        name, direction = case.next()
        self.turns.append((name, direction, iterations))
        if name == "sdpa-cudnn":
            raise Cannot("kernel_cannot", "no\nengine " + "y" * 400)
        return [300.0 if direction == "bwd" else 100.0] * iterations

    def conditions(self):
        return dict(self.said)


def asked(words=""):
    return attention.arguments(["--seq", "4k,64", "--heads", "8", "--kv-heads", "2", "--samples", "12", *words.split()])


class Rows(unittest.TestCase):
    def rows(self, words="", **conditions):
        self.device = Standin(**conditions)
        return attention.measure(self.device, asked(words), "0123abcd")

    def one(self, rows, name, direction, seq):
        (found,) = [r for r in rows if (r["key"]["attention"], r["key"]["direction"], r["key"]["seq"]) == (name, direction, seq)]
        return found

    def test_every_cell_is_a_row(self):
        rows = self.rows()
        self.assertEqual(len(rows), 2 * 6 * 2)
        for made in rows:
            self.assertEqual(set(made["key"]), KEY)
            self.assertIn(made["rule"], RULES)
            self.assertEqual(made["machine"], "0123abcd")
            self.assertLess(len(made["why"]), 256)
            self.assertLess(len(made["kernel"]), 64)
            self.assertEqual(made["outcome"] == "ok", made["rule"] == "ok" and made["verified"])

    def test_what_was_timed(self):
        made = self.one(self.rows(), "sdpa", "bwd", 4096)
        self.assertEqual((made["outcome"], made["times_us"], made["median_us"]), ("ok", [300.0] * 12, 300.0))
        self.assertEqual(made["conditions"], {"copies": 1, "warmups": 3, "blocks": 3})
        pairs = 4096 * 4097 / 2
        self.assertEqual(made["flops"], 2.5 * 4 * 8 * 128 * pairs)
        self.assertAlmostEqual(made["tflops"], made["flops"] / 300e6)
        self.assertEqual(self.one(self.rows("--full"), "sdpa", "fwd", 64)["flops"], 4 * 8 * 128 * 64 * 64)

    def test_what_was_not(self):
        rows = self.rows()
        for name, outcome, rule in (("flash_attention_2", "waived", "absent"), ("sdpa-cudnn", "waived", "kernel_cannot"),
                                    ("flash_attention_3", "failed", "ok")):  # fmt: skip
            made = self.one(rows, name, "fwd", 64)
            self.assertEqual((made["outcome"], made["rule"], made["times_us"]), (outcome, rule, []), name)
            self.assertTrue(made["why"])
            self.assertNotIn("\n", made["why"])

    def test_kernels_alternate(self):
        self.rows("--kernels sdpa,sdpa-flash")
        turns = [t for t in self.device.turns if t[2]]
        self.assertEqual(len(turns), 2 * 4 * 3)
        self.assertEqual([n for *_, n in turns[:12]], [5] * 8 + [2] * 4)
        for block in range(0, len(turns), 4):
            self.assertEqual(len({t[:2] for t in turns[block : block + 4]}), 4)
        self.assertNotEqual([t[:2] for t in turns[:4]], sorted(t[:2] for t in turns[:4]))

    def test_a_disturbed_gpu(self):
        for conditions in ({"gpu_others": 1}, {"held_by_heat": 1}, {"held_by_board": 1}):
            made = self.one(self.rows(**conditions), "sdpa", "fwd", 64)
            self.assertEqual((made["outcome"], made["rule"], len(made["times_us"])), ("waived", "tainted", 12))
        made = self.one(self.rows(held_by_power=1, sm_mhz=1500.0), "sdpa", "fwd", 64)
        self.assertEqual((made["outcome"], made["conditions"]["sm_mhz"]), ("ok", 1500.0))

    def test_the_worst_is_kept(self):
        kept = {}
        for sm, heat in ((1900, 50), (1500, 70), (1700, 60)):
            attention.worst(kept, {"sm_mhz": sm, "gpu_celsius": heat})
        self.assertEqual(kept, {"sm_mhz": 1500, "gpu_celsius": 70})

    def test_the_document(self):
        """The file is what test_sample_json.c reads; UPDATE=1 writes it again."""
        options = asked("--kernels sdpa,flash_attention_2 --direction fwd --seq 64")
        rows = attention.measure(Standin(sm_mhz=1500.0), options, "0123abcd")
        for made in rows:
            made["measured_at"] = "2026-01-01T00:00:00Z"
        made = attention.document("0123abcd", options, rows, "0.1.0", "2026-01-01T00:00:00Z")
        made["command"] = "attention.py"
        path = os.path.join(ROOT, "tests", "peers", "attention_rows.json")
        if os.environ.get("UPDATE"):
            with open(path, "w") as file:
                file.write(json.dumps(made, indent=1) + "\n")
        with open(path) as file:
            self.assertEqual(json.load(file), made)


class Options(unittest.TestCase):
    def test_refused(self):
        for words in ("--seq 4x", "--seq 0", "--heads 3", "--dtype int8", "--kernels sdpa,flash", "--samples 9", "--causal --full", "--batch 0"):
            with self.assertRaises(SystemExit) as refused, contextlib.redirect_stderr(io.StringIO()):
                attention.arguments(["--kv-heads", "2", "--heads", "8", *words.split()])
            self.assertEqual(refused.exception.code, 2, words)

    def test_units(self):
        self.assertEqual(attention.numbers("4096,128k,1M"), [4096, 131072, 1048576])


def python_with_torch():
    python = os.environ.get("FIGURES_PYTHON") or os.path.join(ROOT, ".venv/bin/python")
    found = os.access(python, os.X_OK) and subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0
    return python if found else None


class Real(unittest.TestCase):
    PROGRAM = [os.path.join(PEERS, "attention.py"), "--device", "cpu", "--seq", "64,33", "--heads", "4", "--kv-heads", "2", "--head-dim", "16",
               "--samples", "10", "--sptune", "/bin/false"]  # fmt: skip

    def test_without_pytorch(self):
        done = subprocess.run([sys.executable, "-S", "-B", *self.PROGRAM], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (77, ""), done.stderr)
        self.assertIn("no PyTorch", done.stderr)

    def test_on_the_cpu(self):
        python = python_with_torch()
        if python is None:
            self.skipTest("no PyTorch in .venv (FIGURES_PYTHON names another)")
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
        env.pop("SPTUNE", None)
        for dtype in ("fp32", "bf16"):
            done = subprocess.run([python, *self.PROGRAM[:-2], "--dtype", dtype], capture_output=True, text=True, env=env)
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = {(r["key"]["attention"], r["key"]["direction"], r["key"]["seq"]): r for r in json.loads(done.stdout)["samples"]}
            for direction in ("fwd", "bwd"):
                for seq in (64, 33):
                    made = rows["sdpa", direction, seq]
                    self.assertEqual((made["outcome"], len(made["times_us"]), made["verified"]), ("ok", 10, True), made["why"])
                    self.assertGreater(min(made["times_us"]), 0)
                    self.assertEqual(rows["flash_attention_2", direction, seq]["rule"], "kernel_cannot")

    def test_a_wrong_kernel(self):
        python = python_with_torch()
        if python is None:
            self.skipTest("no PyTorch in .venv (FIGURES_PYTHON names another)")
        code = """
import attention, attention_kernels
options = attention.arguments(["--seq", "64", "--heads", "4", "--kv-heads", "2", "--head-dim", "16", "--device", "cpu", "--kernels", "sdpa"])
device = attention_kernels.Torch(options)
right, about = device.kernel("sdpa")
device.found["sdpa"] = (lambda q, k, v, causal: right(q, k, v, causal) * 1.05, about)
print(*{(r["outcome"], len(r["times_us"])) for r in attention.measure(device, options, "")})
"""
        done = subprocess.run([python, "-B", "-c", code], capture_output=True, text=True, cwd=PEERS)
        self.assertEqual(done.stdout.strip(), "('failed', 0)", done.stderr)


if __name__ == "__main__":
    unittest.main()
