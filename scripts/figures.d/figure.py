"""scripts/figures.d/figure.py -- one row of a figure: what was timed, its rounds, and the ratios that are made of them."""

import os
import statistics

import paired
from ours import Unmeasured


def of_key(row, *fields):
    """Field values of a row's key joined by '-', its name within a figure."""
    return "-".join(str(row["key"][field]) for field in fields)


def of_row(row, field):
    """A number of the row that a ratio needs."""
    if row.get(field) is None:
        raise Unmeasured(f"sptune: a {row['key']['subject']} row without {field}")
    return row[field]


def mib(count):
    return f"{count / 1024:,.0f} KiB" if count < 1 << 20 else f"{count / (1 << 20):,.1f} MiB"


REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def told(words):
    """A command as the file tells it: a program by its name, a file of ours by its place here, whatever machine it ran on."""
    out = []
    for word in map(str, words):
        if os.path.isabs(word):
            ours = os.path.commonpath([REPOSITORY, word]) == REPOSITORY
            word = os.path.relpath(word, REPOSITORY) if ours else os.path.basename(word)
        out.append(word)
    return " ".join(out)


class Row:
    def __init__(self, name, rounds, threads, ranks):
        self.name, self.rounds, self.threads, self.ranks = name, rounds, threads, ranks
        self.command, self.peer_command, self.values = [], [], {}
        self.ratios = []  # (name, estimate, target)

    def keep(self, *names):
        """Of the labels that every round has, those that begin with one of these names and a unit belong to this row."""
        common = set.intersection(*(set(r["samples"]) for r in self.rounds))
        labels = {label for label in common if any(label.startswith(name + "_") for name in names)}
        self.rounds = [
            {
                "order": r["order"],
                "samples": {label: samples for label, samples in r["samples"].items() if label in labels},
            }
            for r in self.rounds
        ]

    def add(self, name, value, target=None):
        estimated = paired.estimate([r["samples"] for r in self.rounds], value)
        self.ratios.append((name, estimated, target))

    def medians(self):
        out = {}
        for label in self.rounds[0]["samples"]:
            out[label] = statistics.median(x for r in self.rounds for x in r["samples"][label])
        return out

    def document(self):
        return {
            "name": self.name,
            "ranks": self.ranks,
            "threads": self.threads,
            **self.values,
            "command": told(self.command),
            "peer_command": told(self.peer_command),
            "ratios": [
                {"name": n, "value": e[0], "ci95": [e[1], e[2]], "target": t, "verdict": paired.verdict(e, t)}
                for n, e, t in self.ratios
            ],
            "medians": self.medians(),
            "rounds": self.rounds,
        }
