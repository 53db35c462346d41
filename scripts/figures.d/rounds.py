"""scripts/figures.d/rounds.py -- take samples of several sides alternately: A B, B A, A B, B A ...

A side is a function of the number of iterations wanted; it returns {label: [samples]}. Labels end in their unit: those in _us are
times and decide how many iterations make up a stretch.
"""

import statistics

FEWEST = 10  # bench takes no fewer
MOST = 100


def iterations(samples, seconds, fewest):
    """How many of the slowest label's iterations fill `seconds`."""
    slowest = max(statistics.median(times) for label, times in samples.items() if label.endswith("_us"))
    labels = sum(label.endswith("_us") for label in samples)
    return max(fewest, min(MOST, int(seconds * 1e6 / labels / slowest)))


def alternate(sides, count, seconds, fewest=FEWEST):
    """[{"order": [side, ...], "samples": {label: [...]}}] of `count` rounds, after one that only finds out how long things take."""
    wanted = {name: iterations(take(fewest), seconds, fewest) for name, take in sides.items()}
    out = []
    for i in range(count):
        order = list(sides) if i % 2 == 0 else list(reversed(list(sides)))
        samples = {}
        for name in order:
            samples.update(sides[name](wanted[name]))
        out.append({"order": order, "samples": samples})
    return out
