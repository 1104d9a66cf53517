#!/usr/bin/env python3
"""Works out golden.json by means of its own: exact fractions and plain loops,
nothing of the program under test. Run it again after a change of the samples:
python3 golden.py > golden.json"""
import json
import random
from fractions import Fraction
from math import comb

CONFIDENCE = Fraction(95, 100)


def median(xs):
    xs = sorted(xs)
    n = len(xs)
    return (xs[(n - 1) // 2] + xs[n // 2]) / 2


def coverage(n, low, high):
    """Of the interval from the low-th to the high-th order statistic, for the median."""
    return sum(Fraction(comb(n, k), 2**n) for k in range(low, high))


def interval(xs, confidence=CONFIDENCE):
    """The narrowest symmetric pair of order statistics that covers enough."""
    xs = sorted(xs)
    n = len(xs)
    best = None
    for low in range(1, n // 2 + 1):
        if coverage(n, low, n + 1 - low) >= confidence:
            best = low
    if best is None:
        return None
    return [xs[best - 1], xs[n - best], float(coverage(n, best, n + 1 - best))]


def percentile(xs, q):
    """Hyndman and Fan 8: h = (n + 1/3) q + 1/3."""
    xs = sorted(xs)
    n = len(xs)
    h = (Fraction(n) + Fraction(1, 3)) * q + Fraction(1, 3)
    k = int(h)
    if k < 1:
        return xs[0]
    if k >= n:
        return xs[-1]
    return float(Fraction(xs[k - 1]) + (h - k) * (Fraction(xs[k]) - Fraction(xs[k - 1])))


def at_least(n, k, p):
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def bisect(f, low=0.0, high=1.0):
    for _ in range(200):
        mid = (low + high) / 2
        if f(mid) < 0:
            low = mid
        else:
            high = mid
    return (low + high) / 2


def share(k, n):
    low = 0.0 if k == 0 else bisect(lambda p: at_least(n, k, p) - 0.025)
    high = 1.0 if k == n else bisect(lambda p: 0.025 - (1 - at_least(n, k + 1, p)))
    return [k / n, low, high]


def ratio(a, b):
    """Both medians' intervals, each of which misses half as often."""
    each = 1 - (1 - CONFIDENCE) / 2
    (la, ha, ca), (lb, hb, cb) = interval(a, each), interval(b, each)
    return [median(b) / median(a), lb / ha, hb / la, ca + cb - 1]


r = random.Random(20261130)
samples = {
    "exponential": [round(r.expovariate(1 / 200e6)) for _ in range(40)],
    "normal": [round(r.gauss(150e6, 10e6)) for _ in range(25)],
    "two humps": [round(r.gauss(m, 1e6)) for m in (50e6, 90e6) for _ in range(15)],
    "ties": [3, 1, 2, 2, 2, 3, 1, 2, 3, 2, 2, 1],
    "six": [9, 4, 7, 1, 5, 3],
    "five": [9, 4, 7, 1, 5],
    "one": [42],
    "equal": [7] * 20,
}
json.dump(
    {
        "samples": {
            name: {
                "values": xs,
                "median": median(xs),
                "interval": interval(xs),
                "p95": percentile(xs, Fraction(95, 100)) if len(xs) >= 20 else None,
            }
            for name, xs in samples.items()
        },
        "ratios": [
            {"a": a, "b": b, "ratio": ratio(samples[a], samples[b])}
            for a, b in (("normal", "exponential"), ("exponential", "normal"), ("normal", "two humps"), ("ties", "ties"), ("equal", "normal"))
        ],
        "shares": [{"k": k, "n": n, "share": share(k, n)} for k, n in ((0, 10), (10, 10), (3, 10), (1, 1), (57, 60), (500, 1000))],
    },
    __import__("sys").stdout,
    indent=1,
)
print()
