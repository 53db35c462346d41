"""What the tests beside this file share: the emitted directories, and reading them without running them."""

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile


class Case:
    """One emitted directory."""

    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(path)
        self.document = json.loads(self.text("recommendation.json"))
        self.plan = self.document["plan"]
        self.world = self.document["problem"]["world"]
        self.cpu = self.script_plan()["predicted_on"] == "cpu"

    def file(self, name):
        return os.path.join(self.path, name)

    def text(self, name):
        with open(self.file(name), encoding="utf-8", newline="") as file:
            return file.read()

    def script_plan(self):
        """PLAN of train.py: a literal, so that reading it runs nothing."""
        for node in ast.parse(self.text("train.py")).body:
            if isinstance(node, ast.Assign) and node.targets[0].id == "PLAN":
                return ast.literal_eval(node.value)
        raise AssertionError("train.py has no PLAN")


def emit(program, *arguments):
    """A new directory, and the cases that `program` emits into it."""
    root = tempfile.mkdtemp(prefix="sptune-test-")
    subprocess.run([program, root, *arguments], check=True)
    return root, [Case(os.path.join(root, name)) for name in sorted(os.listdir(root))]


def program():
    """The emitter given on the command line, taken off it."""
    return sys.argv.pop(1)


def remove(root):
    shutil.rmtree(root)
