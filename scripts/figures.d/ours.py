"""scripts/figures.d/ours.py -- rows of `sptune bench` and steps of `sptune train`, one short process each time."""

import json
import os
import shutil
import subprocess
import tempfile


class Unmeasured(Exception):
    """Why there is no figure: shown, and the other figures go on."""


class Disturbed(Unmeasured):
    """The machine was not quiet."""


TRIES = 3


def said(options):
    return [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), str(value))]


class Sptune:
    """The program, with a store of its own, so that what it checked once is remembered from process to process."""

    def __init__(self, program, disturbed=False, budget="120s"):
        self.program = program
        self.disturbed = disturbed  # take rows that were waived because the machine was not quiet
        self.took_disturbed = False
        self.budget = budget  # of one process, most of it for disturbances
        self.version = ""
        self.exchanges = self._text("bench", "exchange", "--exchange", "list")
        self.folder = tempfile.mkdtemp(prefix="sptune-figures-")

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def _text(self, *arguments):
        try:
            done = subprocess.run([self.program, *arguments], capture_output=True, text=True, timeout=60)
        except OSError as why:
            raise SystemExit(f"figures: {self.program}: {why.strerror}; right would be SPTUNE=path of a built sptune")
        if done.returncode != 0:
            raise SystemExit(f"figures: {self.program}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def needs_exchange(self, name):
        if name not in self.exchanges.split():
            raise Unmeasured(f"this sptune has no exchange {name}")

    def command(self, subject, **options):
        """The command line of one row or sweep, as somebody would type it."""
        return ["sptune", "bench", subject, *said(options)]

    def train_command(self, **options):
        return ["sptune", "train", *said(options)]

    def steps(self, samples, **options):
        """Times of as many steps of training, after one in which memory is touched."""
        words = self.train_command(**options, steps=samples + 1)[1:]
        done = subprocess.run([self.program, *words, "--json", "--quiet", "--progress", "none"], capture_output=True, text=True, timeout=1200)
        try:
            document = json.loads(done.stdout)
            times = [step["step_us"] for step in document["steps"][1:]]
        except (ValueError, KeyError):
            raise Unmeasured(f"sptune {' '.join(words)}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
        self.version = document["version"]
        return times

    def rows(self, samples, subject, **options):
        """The rows of one process; Unmeasured when one has no samples, after a few tries when the machine was not quiet."""
        for left in range(TRIES - 1, -1, -1):
            try:
                return self._rows(samples, subject, options)
            except Disturbed:
                if left == 0:
                    raise

    def _rows(self, samples, subject, options):
        words = self.command(subject, **options)[1:]
        words += ["--samples", str(samples), "--effort", "full", "--warmup", "3", "--budget", self.budget]
        words += ["--json", "--quiet", "--progress", "none", "--store", os.path.join(self.folder, "store.db")]
        done = subprocess.run([self.program, *words], capture_output=True, text=True, timeout=600)
        try:
            document = json.loads(done.stdout)
            rows = document["samples"]
        except (ValueError, KeyError):
            raise Unmeasured(f"sptune {' '.join(words)}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
        self.version = document["version"]
        for row in rows:
            self._judge(row)
        return rows

    def _judge(self, row):
        self.version = row["versions"].get("sptune", self.version)
        if row["outcome"] == "ok":
            return
        if self.disturbed and row["outcome"] == "waived" and row["times_us"]:
            self.took_disturbed = True
            return
        kind = Disturbed if row["rule"] == "tainted" else Unmeasured
        raise kind(f"sptune: {row['outcome']}, rule {row['rule']}: {row['why']}")
