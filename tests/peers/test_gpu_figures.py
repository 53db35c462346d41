"""scripts/gpu-figures where it cannot end well: one line says why, and nothing is left that is no measurement. Then the figures that are kept."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SPTUNE = sys.argv.pop(1)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class GpuFigures(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def figures(self, *words, sptune="/bin/false"):
        command = [sys.executable, "-B", os.path.join(ROOT, "scripts", "gpu-figures"), "--sptune", sptune, *words]
        return subprocess.run(command, capture_output=True, text=True)

    def program(self, name, text, end=""):
        """A program that prints that, leaves in NAME.asked what it was asked, and ends so."""
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\ncat <<'END'\n{text}END\necho \"$*\" >$0.asked\n{end}\n")
        os.chmod(path, 0o755)
        return path

    def put(self, name, rows):
        with open(os.path.join(self.folder, name + ".jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def refused(self, why, part="train"):
        shown = self.figures("show", "--parts", part, "--out", self.folder)
        self.assertEqual(shown.returncode, 1)
        self.assertEqual(len(shown.stderr.splitlines()), 1, shown.stderr)
        self.assertIn(why, shown.stderr)

    def test_failed_part(self):
        done = self.figures("--parts", "train", "--out", self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("exit status 1.; right would be two GPUs", done.stderr)
        self.assertEqual(os.listdir(self.folder), ["train-32k.jsonl.unfinished"])

    def test_rows_that_are_too_few(self):
        run = {"seq": 32768, "backend": "cudnn", "loss": "plain"}
        self.refused("train: [Errno 2]")
        self.put("fsdp-32k-cudnn", [])
        self.refused("train: too few rows")
        self.put("fsdp-32k-cudnn", [{"backend": "cudnn"}])
        self.refused("train: a row without 'seq'")
        self.put("fsdp-32k-cudnn", [run, *({"step_us": us} for us in (3, 2, 2))])
        self.put("train-32k", [{"step_us": us} for us in (2, 1)])
        self.refused("train: train-32k.jsonl has no third step")

    def test_packs(self):
        sizes = {4096: 24 << 20, 8192: 48 << 20, 32768: 192 << 20, 131072: 768 << 20}
        self.put("packs", [{"key": {"seq": s}, "bytes": b, "times_us": [9], "median_us": 9, "conditions": {"pack_us": b / 1e6}} for s, b in sizes.items()])
        self.put("copies", [{"key": {"bytes": b}, "times_us": [2 * b / 1e6], "median_us": b / 2e6 if b == 48 << 20 else b / 1e6} for b in sizes.values()])
        self.put("one", [])  # of part exchange, of which nothing else is here
        shown = self.figures("show", "--out", self.folder)
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertIn("| packing q, k and v, S=4,096: copy within the GPU / pack | 1.00 | [1.00..1.00] | >= 0.85 | met |", shown.stdout)
        self.assertIn("| packing q, k and v, S=8,192: copy within the GPU / pack | 0.50 | [0.50..0.50] | >= 0.85 | missed |", shown.stdout)
        self.refused("exchange: [Errno 2]", "exchange")

    def test_nccl_tests(self):
        sizes = [1 << bits for bits in range(20, 31, 2)]
        ours = [{"key": {"bytes": size}, "times_us": [size / 1e5] * 3, "median_us": size / 1e5} for size in sizes]
        sptune = self.program("sptune", "".join(json.dumps(row) + "\n" for row in ours))
        table = "# size count type redop root time algbw busbw #wrong\n" + "".join(
            f"{size:12d} {size // 8:12d} float none -1 {size / 1.25e5:.1f} 125.00 62.50 0 1.00 1.00 1.00 N/A\n" for size in sizes
        )
        perf = self.program("alltoall_perf", table)
        for command, asked in ((perf, "-t 2 -b 1M -e 1G -f 4"), (f"env {perf} -g 2", "-g 2 -b 1M")):
            done = self.figures("--parts", "nccl-tests", "--nccl-tests", command, "--out", self.folder, sptune=sptune)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("| all-to-all of 1 MiB, loop: nccl-tests / bench collective | 0.80 | [0.80..0.80] | >= 0.95 | missed |", done.stdout)
            self.assertEqual(done.stdout.count("bench collective"), len(sizes))
            with open(perf + ".asked", encoding="utf-8") as file:
                self.assertTrue(file.read().startswith(asked))
        with open(os.path.join(self.folder, "nccl-tests-2.txt"), "w", encoding="utf-8") as file:
            file.write(table.replace(" -1 ", " "))  # as one without a root would
        shown = self.figures("show", "--parts", "nccl-tests", "--out", self.folder)
        self.assertEqual(shown.returncode, 1)
        self.assertIn("not size, count, type, redop, root, us, GB/s", shown.stderr)

    def test_nccl_tests_that_is_not_here(self):
        """Asked for by name that is a mistake; among all parts it is left out, with a line."""
        done = self.figures("--parts", "nccl-tests", "--out", self.folder)
        self.assertEqual((done.returncode, done.stdout, os.listdir(self.folder)), (2, "", []))
        self.assertIn("error: --parts nccl-tests needs --nccl-tests PATH of its alltoall_perf\n", done.stderr)
        done = self.figures("--out", self.folder)
        self.assertEqual(done.returncode, 1)  # of exchange, by /bin/false
        self.assertIn("gpu-figures: nccl-tests is left out; right would be --nccl-tests PATH of its alltoall_perf\n", done.stderr)

    def test_verify(self):
        """On CPUs, with the toy; then what is shown of rows that were changed."""
        done = self.figures("--device", "cpu", "--parts", "verify", "--out", self.folder, sptune=SPTUNE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.listdir(self.folder), ["verify-plans.jsonl"])
        self.assertEqual(done.stdout.count("| 1.0e-05 | met |"), 12, done.stdout)
        with open(os.path.join(self.folder, "verify-plans.jsonl"), encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        self.assertEqual(len({row["command"] for row in rows}), 12)
        self.assertNotIn(self.folder, json.dumps(rows))
        rows[1]["verify"]["grad_error"] = 2e-5
        rows[2]["verify"]["loss_error"] = 2e-5
        self.put("verify-plans", rows)
        shown = self.figures("show", "--parts", "verify", "--out", self.folder).stdout
        self.assertEqual(["| missed |" in line for line in shown.splitlines() if "1.0e-05" in line], [False, True, True] + [False] * 9)
        self.put("verify-plans", [rows[0], rows[2], rows[1], *rows[3:]])
        self.refused("--method split_gather' in the place of ring, --sp 2 --method ring", "verify")
        self.put("verify-plans", rows[1:])
        self.refused("verify-plans.jsonl has 11 rows of 12 plans", "verify")

    def test_verify_in_fp32(self):
        """A ring among them on CPUs, whose kernels take parts of the keys in fp32; none on GPUs."""
        sptune = self.program("sptune", '{"verify": {"loss_error": 0, "loss_error_allowed": 1, "grad_error": 0, "grad_error_allowed": 1}}\n')
        for device, rings in (("cpu", 1), ("cuda", 0)):
            done = self.figures("--device", device, "--parts", "verify-fp32", "--out", self.folder, sptune=sptune)
            self.assertIn("a row without 'command'", done.stderr)
            with open(os.path.join(self.folder, "verify-fp32.jsonl"), encoding="utf-8") as file:
                rows = [json.loads(line) for line in file]
            self.assertEqual(len(rows), 5 + rings)
            plans = ["--sp 2", *["--sp 2 --method ring"] * rings, "--sp 2 --method split_gather", "--tp 2", "--sp 1 --dp-shard 2 --zero 3", "--sp 1 --dp-replicate 2"]
            for row, plan in zip(rows, plans):
                row["command"] = f"sptune train --device {device} --verify --json {plan} --dtype fp32"
            self.put("verify-fp32", rows)
            shown = self.figures("show", "--parts", "verify-fp32", "--out", self.folder)
            self.assertEqual((shown.returncode, shown.stdout.count("| met |"), shown.stdout.count("| ring |")), (0, 5 + rings, rings), shown.stderr)

    def test_verify_that_did_not_end_well(self):
        """A document of one that a signal ended, and half of one, are kept by no name."""
        document = json.dumps({"command": "sptune train --json --sp 2"}) + "\n"
        for text, end, why in ((document, "kill -9 $$", "SIGKILL"), (document, "exit 2", "exit status 2"), (document[:9] + "\n", "exit 1", "printed no document")):
            sptune = self.program("sptune", text, end)
            done = self.figures("--parts", "verify", "--out", os.path.join(self.folder, "out"), sptune=sptune)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(why, done.stderr.splitlines()[-1])
            self.assertNotIn("Traceback", done.stderr)
            self.assertEqual(os.listdir(os.path.join(self.folder, "out")), ["verify-plans.jsonl.unfinished"])

    def test_cpu_has_no_other_part(self):
        told = self.figures("--device", "cpu", "--parts", "train", "--out", self.folder)
        self.assertEqual(told.returncode, 2)
        self.assertIn("right would be --parts verify,verify-fp32,verify-4,verify-4-more,resume", told.stderr)

    def test_resume(self):
        """On CPUs the same bits; then of a row that was changed, and of runs that are no three of a kernel."""
        done = self.figures("--device", "cpu", "--parts", "resume", "--out", self.folder, sptune=SPTUNE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| cpu | 12 | 12 of 12 | 0.0e+00 | 4 of 4 | 0.0e+00 |", done.stdout)
        with open(os.path.join(self.folder, "resumed.jsonl"), encoding="utf-8") as file:
            runs = [json.loads(line) for line in file]
        self.assertEqual([run["command"].partition(" --jsonl")[2] for run in runs], ["", " --save kept --every 8", " --save kept --resume"])
        self.assertNotIn(self.folder, json.dumps(runs))
        runs[2]["steps"][1]["loss"] *= 1.001
        self.put("resumed", runs)
        self.assertIn("| cpu | 12 | 12 of 12 | 0.0e+00 | 3 of 4 | 1.0e-03 |", self.figures("show", "--parts", "resume", "--out", self.folder).stdout)
        runs[1]["steps"][9]["loss"] *= 1.001  # the run that was resumed: not the first, which it then differs from
        self.put("resumed", runs)
        self.assertIn("| cpu | 12 | 11 of 12 | 1.0e-03 | 4 of 4 | 0.0e+00 |", self.figures("show", "--parts", "resume", "--out", self.folder).stdout)
        self.put("resumed", runs[:2])
        self.refused("resumed.jsonl has 2 runs, not three of each kernel", "resume")
        runs[1]["steps"] = []
        self.put("resumed", runs)
        self.refused("is no run of cpu with steps", "resume")

    def test_emitted(self):
        """What tune emits here, with a program in accelerate's place; then rows of another part."""
        lines = "".join(f"step {n:5d}  loss 5.0000  grad_norm 1.0000  {0.5 + (n < 3):.3f} s  1024.0 tokens/s/device  peak 1.25 GiB\n" for n in range(1, 9))
        self.program("accelerate", "1,024 parameters, random weights\n" + lines)
        words = ("--device", "cpu", "--parts", "emitted-1", "--out", self.folder)
        done = self.figures(*words, "--torchrun", self.program("torchrun", ""), sptune=SPTUNE)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.folder, "accelerate.asked"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "launch --config_file accelerate.yaml train.py --cpu --steps 8\n")
        with open(os.path.join(self.folder, "emitted-1.jsonl"), encoding="utf-8") as file:
            row = json.loads(file.read())
        self.assertNotIn(self.folder, json.dumps(row))
        self.assertIn("| sp=1 |", done.stdout)
        self.assertIn(f"| 500 | {0.5e6 / row['tune']['predicted']['step_us']:.2f} | 1.25 GiB |", done.stdout)
        two = row | {"sp": 2, "tune": row["tune"] | {"tokens_per_s_per_device": row["tune"]["tokens_per_s_per_device"] * 0.8}}
        self.put("emitted", [row, two])
        self.assertIn("| tokens/s, sp=2 / sp=1 | 0.80 | | 0.80 | | |", self.figures("show", "--parts", "emitted", "--out", self.folder).stdout)
        self.put("emitted", [two])
        self.refused("emitted.jsonl has no row for each of sp (1, 2)", "emitted")
        self.program("accelerate", lines[: len(lines) // 2])
        done = self.figures(*words, "--torchrun", os.path.join(self.folder, "torchrun"), sptune=SPTUNE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("launch.sh told 4 steps of 8; right would be --sptune PROGRAM, and accelerate and deepspeed beside the PyTorch", done.stderr)

    def test_proved(self):
        """Steps of our harness beside what tune predicted of them, on CPUs."""
        words = ("--device", "cpu", "--parts", "proved-1", "--out", self.folder)
        done = self.figures(*words, sptune=SPTUNE)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.folder, "proved-1.jsonl"), encoding="utf-8") as file:
            row = json.loads(file.read())
        self.assertNotIn(self.folder, json.dumps(row))
        proof = row["proofs"][0]
        self.assertTrue(proof["predicted_us"] > 0 and proof["measured_us"] > 0 and proof["measured_bytes"] > 0)
        row["proofs"] = [proof | {"plan": "ulysses sp=1 cpu zero=3 mb=1", "predicted_us": 2e6, "measured_us": 2.5e6, "predicted_peak_bytes": 2**30, "measured_bytes": 1.5 * 2**30}]
        self.put("proved-1", [row])
        shown = self.figures("show", "--parts", "proved-1", "--out", self.folder).stdout
        self.assertIn("| ulysses sp=1 cpu | 2000 | 2500 | 1.25 | 1.0 | 1.5 |", shown)
        self.put("proved-1", [row | {"proofs": []}])
        self.refused("proved-1.jsonl has no steps", "proved-1")

    def test_show_of_nothing(self):
        shown = self.figures("show", "--out", os.path.join(self.folder, "none"))
        self.assertEqual((shown.returncode, shown.stdout), (1, ""))
        self.assertIn("right would be --out of a folder that `all` wrote", shown.stderr)

    def test_kept(self):
        shown = self.figures("show")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("| training, S=32,768: FSDP2", shown.stdout)

    def lines(self, *path):
        with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
            return [" ".join(line.split()) for line in file]

    def shown(self, machine, parts):
        shown = self.figures("show", "--parts", parts, "--out", os.path.join(ROOT, "results", "measured", machine))
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        return [" ".join(line.split()) for line in shown.stdout.splitlines() if line]

    def test_docs_have_what_is_kept(self):
        """All files of these parts are kept, and every line of them stands in its page as it is shown."""
        kept = (("measurement-gpu.md", "h200x2", "exchange,packs,nccl-tests"), ("measurement-gpu.md", "h200", "attention,emitted-1,emitted-wide-1,proved-1"),
                ("training.md", "h200x2", "verify"), ("training.md", "h200", "verify-4,resume"))
        for page, machine, parts in kept:
            docs = set(self.lines("docs", page))
            self.assertEqual([line for line in self.shown(machine, parts) if line not in docs], [], page)

    def test_readme_has_what_is_kept(self):
        found = re.search(r"One tensor of (.*?) MiB moves at (.*?) of a peer copy", " ".join(self.lines("README.md")))
        said = [re.split(", | and ", group) for group in found.groups()]
        rows = [line.split(" | ") for line in self.shown("h200x2", "exchange") if line.startswith("| one tensor of ")]
        self.assertEqual(said, [[row[0].split()[4] for row in rows], [row[1] for row in rows]])

    def test_readme_has_attention_that_is_kept(self):
        text = " ".join(self.lines("README.md"))
        said = re.search(r"`cudnn`, called from C, reaches (.*?) times .* `flash2` reaches (.*?) times PyTorch's flash kernel forward and (.*?) backward", text)
        rows = [line.split(" | ") for line in self.shown("h200", "attention") if line.startswith("| attention ")]
        found = []
        for kernel, ways in (("cudnn", ("fwd", "bwd")), ("flash2", ("fwd",)), ("flash2", ("bwd",))):
            ratios = [row[1] for row in rows if row[0].endswith("/ " + kernel) and row[0].split()[2].rstrip(",") in ways]
            found.append(f"{min(ratios)} to {max(ratios)}")
        self.assertEqual(list(said.groups()), found)


if __name__ == "__main__":
    unittest.main()
