"""scripts/peers/told.py -- the protocol of the comparators: {"ready": ...}, then one JSON line per line `run ...` on stdin."""

import json
import os
import sys
import time

answers = None  # None: stdout


def alone():
    """From here on answers alone go to stdout, and what libraries write there (gloo does) to stderr."""
    global answers
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def say(**answer):
    print(json.dumps(answer), file=answers, flush=True)


def lines(once):
    """Words after `run` of each command; `once`, a command from the arguments, is the only one where given."""
    for line in [once] if once else sys.stdin:
        words = line.split()
        if words[:1] != ["run"]:
            raise SystemExit(f"{sys.argv[0]}: '{line.strip()}'; right would be a line that begins with 'run'")
        yield words[1:]


def times(operation, iterations, before=lambda: None, warmups=3):
    """Microseconds of each iteration on this process."""
    out = []
    for i in range(-warmups, iterations):
        before()
        begin = time.perf_counter_ns()
        operation()
        if i >= 0:
            out.append((time.perf_counter_ns() - begin) / 1e3)
    return out
