"""scripts/figures.d/theirs.py -- a comparator that waits between its turns and runs when told over stdin.

Its first line of output is {"ready": true, ...}; to a line `run ...` it answers one line {"times_us": [...], ...}.
"""

import json
import os
import queue
import signal
import subprocess
import threading

from ours import Unmeasured

START_S = 120
RUN_S = 300


class Peer:
    def __init__(self, words, env=None):
        self.words = words
        try:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except OSError as why:
            raise Unmeasured(f"{words[0]}: {why.strerror}")
        self.lines = queue.Queue()
        self.errors = []
        self.readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self.readers:
            reader.start()
        self.about = self._answer(START_S)

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors = self.errors[-20:] + [line.strip()]

    def _answer(self, seconds):
        while True:
            try:
                line = self.lines.get(timeout=seconds)
            except queue.Empty:
                self.close()
                raise Unmeasured(f"{self.words[0]}: no answer in {seconds} s")
            if line is None:
                self.close()
                said = " | ".join(self.errors[-4:])
                raise Unmeasured(f"{' '.join(self.words[:4])}: ended with {self.process.returncode}: {said}")
            if line.startswith("{"):  # launchers print other lines in between
                return json.loads(line)

    def run(self, *words):
        """times_us of one command."""
        return self.ask(*words)["times_us"]

    def ask(self, *words):
        try:
            self.process.stdin.write("run " + " ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended: its output says why
        return self._answer(RUN_S)

    def close(self):
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            pass
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
        for reader in self.readers:
            reader.join(10)
        self.process.stdout.close()
        self.process.stderr.close()
