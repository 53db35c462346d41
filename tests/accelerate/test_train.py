"""The emitted script trains: the same loss and gradient norm under every split of the same sequences, as without a split.

Needs PyTorch, DeepSpeed and Transformers in .venv; the plans are for CPUs when there is no GPU. Skipped where they are absent.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from importlib import metadata

import emitted

PROGRAM = emitted.program()
CONFIG = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
STEP = re.compile(r"^step\s+\d+\s+loss (\S+)\s+grad_norm (\S+)  .*  peak \d+\.\d\d GiB( resident)?$", re.MULTILINE)


def absent():
    missing = []
    for package in ("torch", "deepspeed", "transformers"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            missing.append(package)
    return missing if os.environ.get("PYTHONPATH", "").find("torch_standin") < 0 else ["torch", *missing]


def train(case, *more, count=2):
    """[(loss, gradient norm)] of the steps."""
    arguments = ["--steps", str(count), *more] + ([] if case.cpu or has_gpus(case.world) else ["--cpu"])
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"],
    }
    done = subprocess.run([case.file("launch.sh"), *arguments], env=environment, capture_output=True, text=True)
    steps = [(float(loss), float(norm)) for loss, norm, _ in STEP.findall(done.stdout)]
    if done.returncode != 0 or len(steps) != count:
        raise AssertionError(f"{case.name}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return steps


def has_gpus(count):
    import torch

    return torch.cuda.is_available() and torch.cuda.device_count() >= count


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.config = tempfile.NamedTemporaryFile("w", suffix=".json", prefix="sptune-test-", delete=False)
        json.dump(CONFIG, cls.config)
        cls.config.close()
        cls.root, cases = emitted.emit(PROGRAM, cls.config.name, "cuda" if has_gpus(1) else "cpu")
        cls.cases = {case.name: case for case in cases}

    @classmethod
    def tearDownClass(cls):
        emitted.remove(cls.root)
        os.remove(cls.config.name)

    def compare(self, base, *others):
        """ZeRO-3 makes the weights while it shards them, with other random numbers than stages 1 and 2: one base for each."""
        wanted = train(self.cases[base])
        for name in others:
            with self.subTest(name):
                for (loss, norm), (loss_wanted, norm_wanted) in zip(train(self.cases[name]), wanted):
                    self.assertAlmostEqual(loss, loss_wanted, delta=2e-4)
                    self.assertAlmostEqual(norm / norm_wanted, 1, delta=2e-3)

    def test_zero_3(self):
        self.compare(
            "w1-sp1-z3-plain",
            "w2-sp1-z3-plain",
            "w2-sp2-z3-plain",
            "w2-sp2-z3-tiled",
            "w4-sp2-z3-plain",
            "w4-sp4-z3-plain",
        )

    def test_saved_weights(self):
        """--model DIR starts from the weights that --save DIR wrote, under another split and stage too."""
        with tempfile.TemporaryDirectory(prefix="sptune-test-") as saved:
            steps = train(self.cases["w2-sp2-z3-plain"], "--save", saved, "--lr", "1e-2", "--warmup", "0", count=4)
            self.assertLess(steps[-1][0], steps[0][0] - 0.5)
            goes_on = [train(self.cases[name], "--model", saved, count=1)[0] for name in ("w2-sp2-z3-plain", "w1-sp1-z2-plain")]
        self.assertLess(goes_on[0][0], steps[0][0] - 0.5)
        self.assertAlmostEqual(goes_on[0][0], goes_on[1][0], delta=2e-4)
        self.assertAlmostEqual(goes_on[0][1] / goes_on[1][1], 1, delta=2e-3)

    def test_zero_1_and_2(self):
        self.compare("w1-sp1-z2-plain", "w2-sp2-z2-plain", "w2-sp2-z1-tiled", "w4-sp2-z2-plain")


if __name__ == "__main__":
    if absent():
        print("not installed in .venv:", ", ".join(absent()))
        sys.exit(77)
    unittest.main()
