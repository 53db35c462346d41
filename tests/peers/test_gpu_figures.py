"""scripts/gpu-figures where it cannot end well: one line says why, and nothing is left that is no measurement. Then the figures that are kept."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class GpuFigures(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def figures(self, *words):
        command = [sys.executable, "-B", os.path.join(ROOT, "scripts", "gpu-figures"), "--sptune", "/bin/false", *words]
        return subprocess.run(command, capture_output=True, text=True)

    def put(self, name, rows):
        with open(os.path.join(self.folder, name + ".jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def refused(self, why):
        shown = self.figures("show", "--parts", "train", "--out", self.folder)
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

    def test_kept(self):
        shown = self.figures("show")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("| training, S=32,768: FSDP2", shown.stdout)

    def test_docs_have_what_is_kept(self):
        """Every line of exchange and attention stands in docs/measurement.md as it is shown."""
        with open(os.path.join(ROOT, "docs", "measurement.md"), encoding="utf-8") as file:
            docs = {" ".join(line.split()) for line in file}
        shown = self.figures("show", "--parts", "exchange,attention")
        lines = [" ".join(line.split()) for line in shown.stdout.splitlines() if line]
        self.assertGreater(len(lines), 40)
        self.assertEqual([line for line in lines if line not in docs], [])


if __name__ == "__main__":
    unittest.main()
