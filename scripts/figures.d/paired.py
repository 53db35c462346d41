"""scripts/figures.d/paired.py -- ratios of what was measured alternately, with an interval.

A round holds, for each label, the samples of one stretch of time; neighbouring stretches of a round share the machine's state, so
ratios are made inside a round and only then put together:

    value of a round    value(medians of the round's labels), e.g. peer / sptune
    estimate            median of the rounds' values
    interval            percentile bootstrap: rounds drawn with replacement, and within each its samples; 95 %

Samples within a round are drawn independently although neighbours are alike; drawing the rounds is what covers that.
"""

import random
import statistics

RESAMPLES = 1000
LEVEL = 0.95


def median_of_rounds(rounds, value):
    return statistics.median(value({label: statistics.median(samples) for label, samples in r.items()}) for r in rounds)


def estimate(rounds, value, seed=1, resamples=None):
    """(estimate, lo, hi). rounds: [{label: [sample, ...]}], the same labels in each; value: {label: median} -> number."""
    if not rounds or any(not samples for r in rounds for samples in r.values()):
        raise ValueError("a round without samples")
    draw = random.Random(seed)
    values = []
    for _ in range(resamples or RESAMPLES):
        chosen = draw.choices(rounds, k=len(rounds))
        values.append(
            median_of_rounds(
                [{label: draw.choices(samples, k=len(samples)) for label, samples in r.items()} for r in chosen], value
            )
        )
    values.sort()
    return median_of_rounds(rounds, value), at(values, (1 - LEVEL) / 2), at(values, (1 + LEVEL) / 2)


def at(ordered, share):
    """Order statistic with linear interpolation."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def verdict(estimated, target):
    """What an interval says of `at least target`."""
    _, lo, hi = estimated
    if target is None:
        return ""
    if lo >= target:
        return "met"
    return "missed" if hi < target else "open"
