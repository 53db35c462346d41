"""scripts/figures.d/record.py -- a figure's file (schema sptune.figure/1) and its tables.

    {schema, name, about, command, started, seed, sptune, machine, peer, quick, disturbed, cannot: [why],
     rows: [{name, ranks, threads, command, peer_command, ratios: [{name, value, ci95: [lo, hi], target, verdict}],
             medians: {label: number}, rounds: [{order: [side], samples: {label: [number]}}]}]}

Labels end in their unit. The raw samples of every round are kept, so that each ratio can be made again.
"""

import json
import os

SCHEMA = "sptune.figure/1"


def rounded(x):
    return round(x, 6) if isinstance(x, float) and abs(x) < 1000 else round(x, 3) if isinstance(x, float) else x


def simplified(x):
    if isinstance(x, dict):
        return {k: simplified(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [simplified(v) for v in x]
    return rounded(x)


def text(document):
    """JSON with one line per round, so that a change shows as the lines it changed."""
    document = simplified(document)
    rows = document.pop("rows")
    head = json.dumps(document, indent=1)[:-2]
    out = [head + ',\n "rows": [']
    for i, row in enumerate(rows):
        rounds = row.pop("rounds")
        lines = ",\n    ".join(json.dumps(r) for r in rounds)
        out.append(f'  {json.dumps(row)[:-1]},\n   "rounds": [\n    {lines}]}}' + ("," if i < len(rows) - 1 else ""))
    out.append(" ]}\n")
    return "\n".join(out)


def write(path, document):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text(document))
    os.replace(path + ".new", path)


def load(path):
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if document.get("schema") != SCHEMA:
        raise SystemExit(f"figures: {path} is {document.get('schema')}; right would be {SCHEMA}, made by scripts/figures")
    return document


def digits(value, lo, hi):
    """No more digits than the interval carries."""
    return 2 if hi - lo < 0.5 and value < 20 else 1 if value < 100 else 0


def cells(ratio, quick):
    lo, hi = ratio["ci95"]
    n = digits(ratio["value"], lo, hi)
    target = "" if ratio["target"] is None else f">= {ratio['target']:g}"
    return f"{ratio['value']:.{n}f}", f"[{lo:.{n}f}..{hi:.{n}f}]", target, "quick" if quick and target else ratio["verdict"]


def title(document):
    machine = document["machine"]
    note = " DISTURBED" if document["disturbed"] else ""
    return f"{document['name']}: {document['about']}\n  {machine['cpu']}, {machine['cpus']} CPUs, sptune {document['sptune']}{note}"


def row_lines(row, quick=False):
    lines = [f"  {row['name']}  ({row['ranks']} ranks x {row['threads']} threads)"]
    for ratio in row["ratios"]:
        value, interval, target, verdict = cells(ratio, quick)
        lines.append(f"    {ratio['name']:<34} {value:>6} {interval:<14} {target:<8} {verdict}")
    return "\n".join(lines)


def markdown(document):
    """The figure's rows as a table of the docs: a line a row, a column a ratio; a target that all lines share stands in its column's head."""
    columns = {}  # in the order in which rows have them
    for row in document["rows"]:
        for ratio in row["ratios"]:
            columns.setdefault(ratio["name"], set()).add(ratio["target"])
    shared = {name: len(targets) == 1 for name, targets in columns.items()}
    heads = [f"{name} (>= {min(t):g})" if shared[name] and min(t) is not None else name for name, t in columns.items()]
    lines = [f"| `{document['name']}` | " + " | ".join(heads) + " |", "|---" * (1 + len(columns)) + "|"]
    for row in document["rows"]:
        told = dict.fromkeys(columns, "")
        for ratio in row["ratios"]:
            value, interval, target, verdict = cells(ratio, document.get("quick", False))
            words = (value, interval, verdict, "" if shared[ratio["name"]] else target)
            told[ratio["name"]] = " ".join(word for word in words if word)
        lines.append(f"| {row['name']} | " + " | ".join(told.values()) + " |")
    return "\n".join(lines)
