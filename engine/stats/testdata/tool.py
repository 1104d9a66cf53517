#!/usr/bin/env python3
"""Has SciPy and NumPy (Debian: python3-scipy) work out what package stats and the
95th percentile's interval of package register give, for the samples of golden.json
and some more: python3 tool.py > tool.json"""
import itertools
import json
import math

import numpy
import scipy
from scipy import stats

with open("golden.json") as f:
    golden = json.load(f)
samples = {name: numpy.array(s["values"]) for name, s in golden["samples"].items()}


def ranked(xs, q, tail):
    """The order statistics between which the quantile q is, each end missing it with at most tail."""
    xs, n = numpy.sort(xs), len(xs)
    low, high = int(stats.binom.ppf(tail, n, q)), int(stats.binom.ppf(1 - tail, n, q)) + 1
    if low < 1 or high > n:
        return None
    return [xs[low - 1], xs[high - 1], stats.binom.cdf(high - 1, n, q) - stats.binom.cdf(low - 1, n, q)]


def ratio(a, b):
    lows, highs = ranked(samples[a], 0.5, 0.0125), ranked(samples[b], 0.5, 0.0125)
    return [numpy.median(samples[b]) / numpy.median(samples[a]), highs[0] / lows[1], highs[1] / lows[0]]


def share(k, n):
    i = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    return [k / n, i.low, i.high]


def studentized(values):
    """Every resample, the mean's distance in its own standard errors."""
    v = numpy.array(values)
    index = numpy.array(list(itertools.product(range(len(v)), repeat=len(v))))
    r = v[index]
    d, e = r.mean(axis=1) - v.mean(), stats.sem(r, axis=1)
    t = numpy.sort(numpy.where(e > stats.sem(v) * 1e-9, d / numpy.where(e > 0, e, 1), numpy.copysign(math.inf, d)))
    k = math.floor(0.025 * len(t))
    return [v.mean() - t[-1 - k] * stats.sem(v), v.mean() - t[k] * stats.sem(v)]


random = numpy.random.default_rng(8)
tails = [numpy.round(random.gamma(2, 30, n), 3).tolist() for n in (72, 93, 120, 300)]
lines = [[[1, 2, 4], [12, 21, 39.5]], [[1, 2, 4, 8], [281.3, 499.1, 1003.9, 1950.2]], [[1, 4, 8, 16, 32], [20.1, 81.7, 158.8, 322.4, 641.0]]]
trials = [[10, 11, 12, 14], [281, 279.9, 282.2, 280.4], [3.1, 2.7, 3.3, 2.9, 3.6], [17.2, 16.8, 18.9, 17.7, 17.4, 18.1]]
answers = {
    "Tool": f"SciPy {scipy.__version__}, NumPy {numpy.__version__}",
    "Samples": {name: {"Median": numpy.median(xs), "Interval": ranked(xs, 0.5, 0.025),
                       "P95": numpy.quantile(xs, 0.95, method="median_unbiased") if len(xs) >= 20 else None} for name, xs in samples.items()},
    "Ratios": [{"A": r["a"], "B": r["b"], "Ratio": ratio(r["a"], r["b"])} for r in golden["ratios"]],
    "Shares": [{"K": k, "N": n, "Share": share(k, n)} for k, n in [(0, 5), (1, 1), (3, 8), (8, 8), (0, 93), (93, 93), (119, 120), (250, 1000)]],
    "Poisson": {str(k): stats.chi2.ppf(0.95, 2 * (k + 1)) / 2 for k in (0, 1, 2, 3, 11, 100)},
    "Slopes": [{"X": x, "Y": y, "Slope": stats.linregress(x, y).slope} for x, y in lines],
    "Trials": [{"Values": v, "Interval": studentized(v)} for v in trials],
    "Tails": [{"Values": xs, "Interval": ranked(xs, 0.95, 0.025)} for xs in tails],
}
print("{" + ",\n".join(json.dumps(name) + ": " + json.dumps(a, default=float) for name, a in answers.items()) + "}")
