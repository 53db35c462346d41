"""scripts/figures.d/gpu_rows.py -- rows that commands printed and files keep, ratios of their medians, and lines of a table. For
scripts/gpu-figures and scripts/gpu-scale."""

import json
import os
import statistics
import subprocess
import sys


class Unmeasured(Exception):
    """There is no such row, and why."""


# What a figure raises whose rows are absent or of another form.
LACKS = (Unmeasured, LookupError, TypeError, ValueError, ZeroDivisionError)


def lack(why):
    return f"a row without {why}" if isinstance(why, KeyError) else "too few rows" if isinstance(why, IndexError) else str(why)


def keep(path, command, run=subprocess.run, **how):
    """What it printed, once it ended well."""
    print(os.path.basename(sys.argv[0]) + ":", *command, file=sys.stderr, flush=True)
    with open(path + ".unfinished", "w", encoding="utf-8") as file:
        run(command, stdout=file, check=True, **how)
    os.replace(path + ".unfinished", path)


def read_rows(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]  # a killed command's last line may be half of one


def find(of, **key):
    """The one row with that key."""
    found = [r for r in of if all({**r, **r.get("key", {})}.get(k) == v for k, v in key.items())]
    if len(found) != 1 or found[0].get("outcome", "ok") != "ok":
        raise Unmeasured(f"no row was measured of {key}; right would be one: {[r.get('why') for r in found]}")
    return found[0]


def ratio(above, below):
    """Of medians, and its range where either median moves to the ends of its quartiles."""
    low = [statistics.quantiles(r["times_us"], n=4) if len(r["times_us"]) > 1 else r["times_us"] * 3 for r in (above, below)]
    return above["median_us"] / below["median_us"], low[0][0] / low[1][2], low[0][2] / low[1][0]


def share(part, whole):
    """As a ratio whose range is not known."""
    return (part / whole,) * 3


def sums(fwd, bwd):
    n = min(len(fwd["times_us"]), len(bwd["times_us"]))
    return {"times_us": [f + b for f, b in zip(fwd["times_us"][:n], bwd["times_us"][:n])], "median_us": fwd["median_us"] + bwd["median_us"]}


def head(*columns):
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))


def line(what, figure, target):
    middle, low, high = figure
    verdict = "" if target is None else "met" if middle >= target else "missed"
    print(f"| {what} | {middle:.2f} | [{low:.2f}..{high:.2f}] | {'' if target is None else f'>= {target:g}'} | {verdict} |")
