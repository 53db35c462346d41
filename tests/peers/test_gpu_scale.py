"""scripts/gpu-scale on CPUs: it fills a folder, goes on where it was ended, and its tables say what was measured, predicted and missing."""

import ctypes
import fcntl
import glob
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "gpu-scale")
SPTUNE = sys.argv.pop(1)


def set_apart():
    """Into a network of our own, where that is allowed: the measuring lock is there, and no other sptune of the machine then waits for
    this one, nor this one for it."""
    new_net, set_flags, up = 0x40000000, 0x8914, 0x1
    if ctypes.CDLL(None).unshare(new_net) == 0:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            fcntl.ioctl(s, set_flags, struct.pack("16sh14x", b"lo", up))


def put(path, documents):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(d) + "\n" for d in documents)


def timed(us, **more):
    return {"times_us": [us] * 4, "median_us": us, **more}


def row(us, key, **more):
    return timed(us, key={"ranks": 8, "sp": 8, "heads": 32, **key}, outcome="ok", **more)


class GpuScale(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def scale(self, *words, code=0):
        """On one CPU: two ranks are then too many for rows to be judged by what else the machine does."""
        command = [sys.executable, "-B", SCRIPT, "--out", self.folder, "--predicted", self.folder, "--sptune", SPTUNE, *words]
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_small_run(self):
        words = ["--device", "cpu", "--small", "--only", "targets,layers,train,verify"]
        self.scale(*words)
        shown = self.scale("show").stdout
        for expected in ("2 ranks, sp=2", "packed / direct", "layer us (exposed)", "train-sp2, 4 steps", "train --verify", "| not measured |"):
            self.assertIn(expected, shown)
        os.remove(self.path("targets.jsonl"))
        again = self.scale(*words)
        self.assertIn("bench exchange", again.stderr)
        self.assertNotIn("bench layer", again.stderr)  # its file is there
        for name in glob.glob(self.path("*.json*")):
            with open(name, encoding="utf-8") as file:
                self.assertNotIn(self.folder, file.read())

    def test_what_is_left(self):
        told = self.scale("--device", "cpu", "--small", "--only", "targets,ceiling", "--budget", "18", "--sptune", "/nowhere/sptune", code=1)
        self.assertIn("targets.jsonl: no time left of --budget 18", told.stderr)
        self.assertIn("ceiling.jsonl: [Errno 2]", told.stderr)
        self.assertIn("has no rows", told.stderr)

    def test_what_the_budget_ended(self):
        """Such a file is no part that is done: it is measured again after the others, and stays until one with fewer such rows is there."""
        key = {"subject": "exchange", "op": "whole", "exchange": "direct"}
        good, ended = ([{**row(200, {**key, "seq": seq}), **how} for seq in (256, 512)] for how in ({}, {"outcome": "waived", "rule": "budget"}))
        program = self.path("sptune")
        words = ["--device", "cpu", "--small", "--only", "targets,verify", "--sptune", program]

        def scale(printed, code, status=0):
            """What is told, and how many of the rows that are kept were ended."""
            with open(program, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\ncat <<'END'\n" + "".join(json.dumps(r) + "\n" for r in printed) + f"END\nexit {status}\n")
            os.chmod(program, 0o755)
            told = self.scale(*words, code=code).stderr
            with open(self.path("targets.jsonl"), encoding="utf-8") as file:
                return told, sum(json.loads(line)["outcome"] == "waived" for line in file)

        told, kept = scale([good[0], ended[1]], 1)
        self.assertEqual((told.count("targets.jsonl: rows that its budget ended: 1; the same command"), kept), (1, 1))
        os.remove(self.path("verify.json"))
        for printed, status in ((ended, 0), ([ended[0], good[1]], 0), (good, 1)):
            told, kept = scale(printed, 1, status)
            self.assertEqual((told.count("bench exchange"), kept), (1, 1), told)
        put(self.path("targets.jsonl"), ended)
        told, kept = scale([good[0], ended[1]], 1)
        self.assertEqual(kept, 1)
        os.remove(self.path("verify.json"))
        told, kept = scale(good, 0)
        self.assertLess(told.index(" --verify "), told.index("bench exchange"))
        self.assertEqual(kept, 0)
        self.assertNotIn("bench exchange", scale(good, 0)[0])

    def test_six(self):
        """Groups of 2 fill 6 GPUs, no larger ones do; of PyTorch's groups there is one."""
        told = self.scale("--gpus", "6", "--sptune", "/bin/false", "--torchrun", "/bin/false", code=1).stderr
        commands = [line for line in told.splitlines() if " --ranks 6 " in line]
        self.assertEqual({line.split(" --sp ")[1].split()[0] for line in commands if " --sp " in line}, {"2"})
        self.assertIn("--op one --seq 4096,16384,65536 ", told)
        for absent in ("ulysses_nccl", "--sp  "):
            self.assertNotIn(absent, told)

    def test_four(self):
        told = self.scale("--gpus", "4", "--sptune", "/bin/false", "--torchrun", "/bin/false", code=1).stderr
        for expected in ("--nproc-per-node 4", "--op one --seq 8192,32768,131072 ", "--sp 2,4 --budget 40s", "train --model llama-small --sp 4"):
            self.assertIn(expected, told)

    def test_refused(self):
        for words, why in (
            (["--gpus", "3"], "3 GPUs; right would be an even number"),
            (["--gpus", "4", "--only", "targets,tpyo"], "begins with 'tpyo'; right would be of check, peer, targets,"),
            (["--gpus", "4", "--only", "targets,"], "begins with ''"),
            (["--gpus", "4", "--only", ""], "begins with ''"),
        ):
            told = self.scale(*words, "--sptune", "/bin/false", code=2).stderr
            self.assertIn(why, told)

    def test_other_rows(self):
        put(self.path("targets.jsonl"), [row(200, {"subject": "exchange"})])
        told = self.scale("show", code=1).stderr
        self.assertIn("a row without 'exchange'; right would be", told)
        self.assertEqual(len(told.splitlines()), 1)

    def test_eight(self):
        """Numbers that were made up, so that the ratios are known."""
        exchange = {"subject": "exchange", "op": "whole", "seq": 32768}
        rows = [row(us, {**exchange, "exchange": name}) for name, us in (("push", 200), ("nccl", 260), ("nccl-ce", 250))]
        put(self.path("targets.jsonl"), rows)
        layer = {"subject": "layer", "seq": 32768, "exchange": "push", "attention": "cudnn", "chunks": 1}
        ways = [row(us, {**layer, "direction": way}, conditions={"exposed_us": 100}) for way, us in (("fwd", 2000), ("bwd", 5000))]
        put(self.path("layers-sp8.jsonl"), ways)
        put(self.path("ceiling.jsonl.unfinished"), [row(1, {**exchange, "op": "one", "exchange": "push"}, bytes=64 << 20, effective_GBps=170, ceiling_GBps=200)])
        theirs = [timed(us, row="layer", mode="gated", backend=b, direction="fwd+bwd", seq=32768) for b, us in (("flash", 9999), ("cudnn", 7280))]
        put(self.path("peer.jsonl"), [timed(330, row="exchange", mode="gated", seq=32768), *theirs])
        told = [row(160, {**exchange, "exchange": "push"}, conditions={"predicted_within": 0.2}),
                row(250, {**exchange, "exchange": "nccl"}, conditions={"predicted_within": 0.02}),
                row(250, {**exchange, "exchange": "nccl-ce"}, conditions={"predicted_within": 0.02})]  # fmt: skip
        with open(self.path("h200x8.json"), "w", encoding="utf-8") as file:
            json.dump({"samples": told}, file)
        shown = self.scale("show").stdout
        for expected in (
            "| exchange, S=32,768: PyTorch gated / push | 1.65 | [1.65..1.65] | >= 1.5 | met |",
            "| exchange, S=32,768: nccl-ce / push | 1.25 | [1.25..1.25] | >= 1.15 | met |",
            "push / peer copies of all pairs | 0.85 | [0.85..0.85] | >= 0.9 | missed |",
            "PyTorch cudnn / push | 1.04 | [1.04..1.04] | >= 1.05 | missed |",
            "gain, which is 1.07 | 0.57 | [0.57..0.57] | >= 0.8 | missed |",
            "| 8 | exchange whole push | 32,768 | 160.0 | 200.0 | 1.25 | no, 20% |",
            "| 8 | exchange whole nccl | 32,768 | 250.0 | 260.0 | 1.04 | no, 2% |",
            "| 8 | exchange whole nccl-ce | 32,768 | 250.0 | 250.0 | 1.00 | yes, 2% |",
            "1 of 3 within what was predicted",
        ):
            self.assertIn(expected, shown)

    def test_plans(self):
        """A ratio is of what was measured and what was predicted, else of nothing."""

        def answer(name, measured, predicted):
            plan = {"plan": {"sp_size": 8}, "tokens_per_s_per_device": 4096, "measured": measured and {"step_us": measured}}
            put(self.path(name), [{**plan, "predicted": {"step_us": predicted}}])

        put(self.path("targets.jsonl"), [row(200, {"subject": "exchange", "op": "whole", "seq": 32768, "exchange": "push"})])
        for seq, measured, told_measured in (("1k", 90e3, None), ("2k", None, None), ("4k", 90e3, 70e3)):
            answer(f"tune-{seq}.json", measured, 80e3)
            answer(f"tune-{seq}-h200x8.json", told_measured, 60e3)
        answer("tune-8k.json", 90e3, 80e3)
        for name in ("tune-8k-h200x8.json", "tune-9k.json"):
            put(self.path(name), [{"verdict": "too-large"}])
        shown = self.scale("show").stdout
        for expected in (
            "| tune-1k | 8 | 90 | 4,096 | 8 | 60 | 1.50 |",
            "| tune-2k | 8 | 80 (predicted) | 4,096 (predicted) | 8 | 60 | - |",
            "| tune-4k | 8 | 90 | 4,096 | - | - | - |",
            "| tune-8k | 8 | 90 | 4,096 | - | - | - |",
            "| tune-9k | not measured |",
        ):
            self.assertIn(expected, shown)

    def test_predict(self):
        measured = os.path.join(ROOT, "results", "measured", "h200x2")
        for name in ("exchange.jsonl", "layer.jsonl"):
            shutil.copy(os.path.join(measured, name), self.folder)
        self.scale("predict", "--gpus", "0", code=1)  # 1: what tune would say needs GPUs
        for ranks in (4, 8):
            with open(self.path(f"h200x{ranks}.json"), encoding="utf-8") as file:
                told = json.load(file)["samples"]
            with open(os.path.join(ROOT, "results", "predicted", f"h200x{ranks}.json"), encoding="utf-8") as file:
                kept = json.load(file)["samples"]
            self.assertEqual([(r["key"], r["median_us"]) for r in told], [(r["key"], r["median_us"]) for r in kept])

    def test_predict_of_two(self):
        """However many GPUs there are; what fails is a line each."""
        told = self.scale("predict", "--gpus", "8", "--sptune", "/bin/false", code=1).stderr
        for expected in ("h200x4.json: it ended with 1", "--ranks 2 --world 4 --gpus-per-node 4 --seq 32k", "tune-128k-h200x8.json: it ended with 1"):
            self.assertIn(expected, told)


if __name__ == "__main__":
    set_apart()
    unittest.main()
