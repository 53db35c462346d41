"""scripts/figures.d/scale_tables.py -- the tables of scripts/gpu-scale, from a folder's files. What was not measured is a line that says so."""

import glob
import json
import os
import statistics

from gpu_rows import LACKS, Unmeasured, find, head, lack, line, ratio, read_rows, share, sums

GATED = {32768: 1.5, 131072: 1.4}  # PyTorch's whole exchange over ours, among all ranks
NCCL, CEILING, CEILING_BYTES = 1.15, 0.9, 64 << 20
LAYER, FREE_SHARE = 1.05, 0.8


def names(folder, pattern):
    """Files of that name, and those of parts that did not end."""
    done = set(glob.glob(os.path.join(folder, pattern)))
    return sorted(done | {f for f in glob.glob(os.path.join(folder, pattern + ".unfinished")) if f[: -len(".unfinished")] not in done})


def read(folder, pattern):
    return [row for name in names(folder, pattern) for row in read_rows(name)]


def document(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def ok(of):
    return [r for r in of if r.get("outcome") == "ok"]


def attempt(what, make):
    """A line of a table, or why there is none."""
    try:
        make()
    except LACKS as why:
        print(f"| {what} | not measured | {lack(why)} | | |")


def mine_of(of):
    """Ours among exchanges: push on GPUs."""
    return "push" if any(r["key"]["exchange"] == "push" for r in of) else "direct"


def exchanges(of, peer):
    mine = mine_of(of)
    for seq in sorted({r["key"]["seq"] for r in of}):
        here = [r for r in of if r["key"]["seq"] == seq]

        def gated():
            ours = find(here, exchange=mine)
            line(f"exchange, S={seq:,}: PyTorch gated / {mine}", ratio(find(peer, row="exchange", mode="gated", seq=seq), ours), GATED.get(seq))

        def best():
            ours, theirs = find(here, exchange=mine), [r for r in ok(here) if r["key"]["exchange"].startswith(("nccl", "packed"))]
            if not theirs:
                raise Unmeasured(f"no other exchange at S={seq:,}")
            fastest = min(theirs, key=lambda r: r["median_us"])
            line(f"exchange, S={seq:,}: {fastest['key']['exchange']} / {mine}", ratio(fastest, ours), NCCL)

        attempt(f"exchange, S={seq:,}: PyTorch", gated)
        attempt(f"exchange, S={seq:,}: the best other one", best)


def ceilings(of):
    for row in ok(of):
        size, key = row["bytes"], row["key"]
        label = f"one tensor of {size / (1 << 20):,.3g} MiB a rank: {key['exchange']} / peer copies of all pairs"
        target = CEILING if size >= CEILING_BYTES else None
        attempt(label, lambda: line(label, share(row["effective_GBps"], row["ceiling_GBps"]), target))


def layers(of, peer):
    """Ours without chunks, forward and backward; what an exchange that took no time would give is the ceiling of the ratio."""
    mine = mine_of(of)
    for seq in sorted({r["key"]["seq"] for r in of} & {r["seq"] for r in peer if "seq" in r}):

        def both():
            ways = [find(of, exchange=mine, chunks=1, seq=seq, direction=way) for way in ("fwd", "bwd")]
            theirs = [find(peer, row="layer", direction="fwd+bwd", backend=b, seq=seq) for b in ("flash", "cudnn")]
            ours, best = sums(*ways), min(theirs, key=lambda r: r["median_us"])
            found, exposed = ratio(best, ours), sum(r["conditions"]["exposed_us"] for r in ways)
            free = best["median_us"] / (ours["median_us"] - exposed)
            asked = seq == 32768
            line(f"layer forward and backward, S={seq:,}: PyTorch {best['backend']} / {mine}", found, LAYER if asked else None)
            if free > 1:  # the other way to meet it
                target = FREE_SHARE if asked and found[0] < LAYER else None
                line(f"of what a free exchange would gain, which is {free:.2f}", share(found[0] - 1, free - 1), target)

        attempt(f"layer forward and backward, S={seq:,}", both)


def grid(title, of, fields, column, cell):
    """One line for each value of `fields`, one column for each of `column`."""
    of = ok(of)
    if not of:
        return
    columns = sorted({r["key"][column] for r in of})
    head(title, *map(str, fields[1:]), *map(str, columns))
    for values in sorted({tuple(r["key"].get(f, "") for f in fields) for r in of}):
        here = {r["key"][column]: r for r in of if tuple(r["key"].get(f, "") for f in fields) == values}
        print("| " + " | ".join([*map(str, values), *(cell(here[c]) if c in here else "-" for c in columns)]) + " |")


def us(row):
    return f"{row['median_us']:,.1f}" if row["median_us"] < 1e4 else f"{row['median_us'] / 1e3:,.1f} ms"


def training(folder):
    files = names(folder, "train-sp*.jsonl")
    if files:
        head("training", "loss of first and last step", "tokens/s")
    for name in files:
        steps = [r for r in read_rows(name) if "tokens_per_s" in r]
        if steps:
            rate = statistics.median(r["tokens_per_s"] for r in steps[len(steps) // 4 :])
            label = os.path.basename(name).split(".")[0]
            print(f"| {label}, {len(steps)} steps | {steps[0]['loss']:.3f}, {steps[-1]['loss']:.3f} | {rate:,.0f} |")


def checked(folder):
    report = document(os.path.join(folder, "check.json"))
    if report:
        print(f"\ncheck on {report['ranks']} ranks: {report['passed']} passed, {report['failed']} failed, {report['waived']} waived")
    verify = (document(os.path.join(folder, "verify.json")) or {}).get("verify")
    if verify:
        print(f"\ntrain --verify: gradients are off by {verify['grad_error']:.2g}, allowed {verify['grad_error_allowed']:.2g}")


def foretold(path):
    """Of a plan: its sp and step, where no part of that was timed on as many GPUs."""
    answer = document(path) or {}
    return (answer["plan"]["sp_size"], answer["predicted"]["step_us"]) if "predicted" in answer and not answer["measured"] else None


def plan_line(label, answer, told):
    sp, timed, cells = answer["plan"]["sp_size"], answer["measured"], ["-"] * 3
    step, mark = (timed or answer["predicted"])["step_us"], "" if timed else " (predicted)"
    if told:
        cells = [str(told[0]), f"{told[1] / 1e3:,.0f}", f"{step / told[1]:.2f}" if timed else "-"]
    rate = answer["tokens_per_s_per_device"]
    print(f"| {label} | {sp} | {step / 1e3:,.0f}{mark} | {rate:,.0f}{mark} | " + " | ".join(cells) + " |")


def plans(folder, predicted, ranks):
    answers = [(name, answer) for name in names(folder, "tune-*.json") if (answer := document(name))]
    if answers:
        head("tune", "sp", "step ms", "tokens/s per GPU", "predicted sp", "predicted step ms", "measured / predicted")
    for name, answer in answers:
        label = os.path.basename(name).split(".")[0]
        attempt(label, lambda: plan_line(label, answer, foretold(os.path.join(predicted, f"{label}-h200x{ranks}.json"))))


def key_of(row):
    return json.dumps(row["key"], sort_keys=True)


def predictions(measured, predicted, ranks):
    """Every predicted row that was measured. Within: the ratio's distance from 1 against the half-width that was predicted."""
    told = document(os.path.join(predicted, f"h200x{ranks}.json"))
    here = {key_of(r): r for r in reversed(ok(measured))}
    found = [(p, here[key_of(p)]) for p in ok(told["samples"]) if key_of(p) in here] if told else []
    if not found:
        print(f"\nno row that was predicted for {ranks} ranks was measured")
        return
    head("sp", "what", "S", "predicted us", "measured us", "measured / predicted", "within")
    held = 0
    for p, m in sorted(found, key=lambda f: [f[0]["key"].get(k, "") for k in ("subject", "exchange", "direction", "sp", "seq")]):
        key, by, width = p["key"], m["median_us"] / p["median_us"], p["conditions"]["predicted_within"]
        inside = abs(by - 1) <= width
        held += inside
        what = " ".join(str(key[k]) for k in ("subject", "op", "exchange", "attention", "direction") if k in key)
        print(f"| {key['sp']} | {what} | {key['seq']:,} | {us(p)} | {us(m)} | {by:.2f} | {'yes' if inside else 'no'}, {width:.0%} |")
    print(f"\n{held} of {len(found)} within what was predicted")


def show(folder, predicted):
    peer = read(folder, "peer.jsonl")
    targets, layer = read(folder, "targets.jsonl"), read(folder, "layers-sp*.jsonl")
    ours = [r for pattern in ("targets", "exchanges-*", "long-*", "layers-*", "attentions") for r in read(folder, pattern + ".jsonl")]
    if not ours:
        raise SystemExit(f"gpu-scale: {folder} has no rows; right would be a folder that gpu-scale filled")
    ranks = max(r["key"]["ranks"] for r in ours)
    head(f"{ranks} ranks, sp={max(r['key']['sp'] for r in ours)}", "ratio", "quartiles", "target", "")
    exchanges(targets, peer)
    ceilings(read(folder, "ceiling.jsonl"))
    layers([r for r in layer if r["key"]["sp"] == ranks], peer)
    sweep = [r for r in ours if r["key"]["subject"] == "exchange"]
    grid("exchange us, sp", sweep, ("sp", "heads", "seq"), "exchange", us)
    grid("attention, sp", [r for r in ours if r["key"]["subject"] == "attention"], ("sp", "attention", "direction"), "seq",
         lambda r: f"{us(r)}, {r['tflops']:.0f} TFLOPS")  # fmt: skip
    grid("layer us (exposed), sp", layer, ("sp", "exchange", "direction", "chunks"), "seq",
         lambda r: f"{us(r)} ({r['conditions'].get('exposed_us', 0):,.0f})")  # fmt: skip
    grid("block us, method", read(folder, "blocks.jsonl"), ("method", "direction", "seq"), "exchange", us)
    training(folder)
    plans(folder, predicted, ranks)
    checked(folder)
    predictions(ours, predicted, ranks)
