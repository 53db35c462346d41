"""scripts/figures.d/plot.py -- the README's picture, drawn by gnuplot from figures' files."""

import os
import subprocess

import record

# label of the samples, title, colour (told apart by point type too)
LINES = (
    ("exchange", "direct", "direct", "#1b6ca8", 7),
    ("exchange", "packed", "packed", "#d1495b", 5),
    ("exchange", "packed-separate", "two passes, q k v o apart", "#8a8a8a", 9),
    ("mpi", "separate", "Open MPI, pack and unpack", "#edae49", 13),
)


def rates(document, label):
    """[(bytes, GB/s)] of one kind of sample, hot buffers."""
    out = []
    for row in document["rows"]:
        if row.get("buffers") == "hot" and label + "_us" in row["medians"]:
            out.append((row["bytes"], row["bytes"] / row["medians"][label + "_us"] / 1e3))
    return sorted(out)


def beside(first, document, label):
    """A comparator of another file, on the picture's scale: the first file's direct by the ratio to direct of its own run."""
    direct, out = dict(rates(first, "direct")), []
    for row in document["rows"]:
        if row.get("buffers") == "hot" and {"direct_us", label + "_us"} <= set(row["medians"]) and row["bytes"] in direct:
            out.append((row["bytes"], direct[row["bytes"]] * row["medians"]["direct_us"] / row["medians"][label + "_us"]))
    return sorted(out)


def ceilings(document):
    return sorted(
        (row["bytes"], row["medians"][row["exchange"] + "_ceiling_GBps"])
        for row in document["rows"]
        if row.get("buffers") == "hot" and row["exchange"] + "_ceiling_GBps" in row["medians"]
    )


def script(curves, machine, ranks, output):
    lines = [
        "set terminal svg size 760,460 dynamic background rgb 'white' font 'sans-serif,13'",
        f"set output '{output}'",
        f"set title 'Whole forward exchange, {ranks} ranks, {machine}' noenhanced",
        "set logscale x 2; set xlabel 'bytes sent by one rank'; set ylabel 'GB/s, layout included'",
        "set format x '%.0b %BB'; set yrange [0:*]; set key bmargin center horizontal width 1; set grid ytics lc rgb '#bbbbbb'",
    ]
    for i, (_, points, _, _) in enumerate(curves):
        lines.append(f"$d{i} << EOD\n" + "\n".join(f"{x} {y:.6g}" for x, y in points) + "\nEOD")
    parts = []
    for i, (name, _, colour, point) in enumerate(curves):
        style = f"with linespoints pt {point} ps 0.8" if point else "with lines dt 2"
        parts.append(f"$d{i} {style} lw 2 lc rgb '{colour}' title '{name}' noenhanced")
    lines.append("plot " + ", ".join(parts))
    return "\n".join(lines) + "\n"


def draw(folder, output):
    documents = {}
    for name in ("exchange", "mpi"):
        path = os.path.join(folder, name + ".json")
        if os.path.exists(path):
            documents[name] = record.load(path)
    if "exchange" not in documents:
        raise SystemExit(f"figures: {folder}/exchange.json is not there; scripts/figures exchange makes it")
    first = documents["exchange"]
    curves = [
        (title, rates(first, label) if figure == "exchange" else beside(first, documents[figure], label), colour, point)
        for figure, label, title, colour, point in LINES
        if figure in documents
    ]
    if ceilings(first):
        curves.append(("peer copy, both directions busy", ceilings(first), "#222222", 0))
    curves = [curve for curve in curves if curve[1]]
    machine = f"{first['machine']['cpu']}, {first['machine']['cpus']} CPUs".replace("'", "")
    text = script(curves, machine, first["rows"][0]["ranks"], output)
    try:
        done = subprocess.run(["gnuplot"], input=text, text=True, capture_output=True)
    except OSError as why:
        raise SystemExit(f"figures: gnuplot: {why.strerror}; Debian's package is gnuplot-nox")
    if done.returncode != 0:
        raise SystemExit(f"figures: gnuplot: {done.stderr.strip()}")
