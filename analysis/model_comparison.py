"""Do the arms share a law? M0 m = 1; M1 one m; M2 separate exponents; M3 separate irreducible losses.

All four are models of the paired differences D_i = L_b - L_v (nats), given the arm-averaged curve
E + e(C): the lack of fit that both arms share is not in them. With d_i the headline's value of ln m at
rung i:
    M0  ln m = 0              M1  ln m = c            M2  ln m = c + s (x - mean x), x = ln C
    M3  D_i = D_i(c) + E_b - E_v
Tests: t-test of c = 0 on the rungs' d_i; t-test of the slope of ln[(L_b - E)/(L_v - E)] on x ("paired
slope"); F-test of M3 against M1; AICc with n = number of rungs. M1 is reported unless the paired slope
test prefers M2 at 5 %. Where rungs share trunks the t-tests count clusters, and M3's test and AICc, which
need independent rungs, are not given.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import optimize, stats

from analysis.clusters import Groups, cluster_covariance, num_groups
from analysis.multipliers.base import LEVEL, Floats, PairedArms, RefusalError
from analysis.multipliers.pair_arrays import PairSlope, estimate_pair_slope
from analysis.multipliers.pair_slope import inputs_of, pair_slope

SIGNIFICANCE = 0.05

MODELS = {
    "M0": ("no difference: m = 1", 0),
    "M1": ("shared exponent and irreducible loss, free m", 1),
    "M2": ("separate exponents: m depends on C", 2),
    "M3": ("separate irreducible losses", 2),
}
"""Name -> meaning, free parameters."""


def compare_models(arms: PairedArms) -> list[dict[str, Any]]:
    """One row a model: {variant, model, meaning, parameters, rss, aicc, test, p, preferred, status}.

    A comparison that has no answer gives one row with its refusal as status.
    """
    try:
        headline = pair_slope(arms, LEVEL)
    except RefusalError as refusal:
        return [{"variant": arms.variant, "model": None, "status": f"refused: {refusal}"}]
    if headline.without_noise:
        return [{"variant": arms.variant, "model": None, "status": headline.status}]
    result = estimate_pair_slope(*inputs_of(arms), clusters=arms.clusters)
    x = (np.log(arms.compute_baseline) + np.log(arms.compute_variant)) / 2
    x = x - np.average(x, weights=arms.num_seeds)
    difference = arms.loss_baseline - arms.loss_variant
    start = float(result.ln_m[0])
    fitted = {
        model: _least_squares(
            partial(_predict, model, result, arms, x), difference, arms.num_seeds, free, start
        )
        for model, (_, free) in MODELS.items()
    }
    tests = _tests(result, arms, x, fitted)
    slope_p = tests["M2"][1]
    preferred = "M2" if slope_p is not None and slope_p < SIGNIFICANCE else "M1"
    return [
        {
            "variant": arms.variant,
            "model": name,
            "meaning": meaning,
            "parameters": [float(p) for p in fitted[name][0]],
            "rss": fitted[name][1],
            "aicc": None if arms.clustered else _aicc(fitted[name][1], len(x), free + 1),
            "test": tests[name][0],
            "p": tests[name][1],
            "preferred": name == preferred,
            "status": "converged",
        }
        for name, (meaning, free) in MODELS.items()
    ]


def paired_slope_test(
    x: Floats, log_ratio: Floats, weights: Floats, clusters: Groups | None = None
) -> float | None:
    """p of slope 0 in the weighted regression of ln[(L_b - E)/(L_v - E)] on ln C; None for fewer than 3.

    Points of one cluster count as one: see `analysis.clusters.cluster_covariance`.
    """
    n = len(x) if clusters is None else num_groups(clusters)
    if n < 3:
        return None
    w = weights / weights.sum()
    z, y = x - w @ x, log_ratio - w @ log_ratio
    spread = float(w @ z**2)
    slope = float(w @ (z * y)) / spread
    variance, dof = float(w @ (y - slope * z) ** 2) / (n - 2) / spread, n - 2.0
    if clusters is not None and n < len(x):
        line_1K2 = np.stack([np.ones_like(z), z], axis=-1)[None]
        by_cluster = cluster_covariance(clusters, line_1K2, w[None], (y - slope * z)[None])
        variance = float(by_cluster.covariance[0, 1, 1])
        dof = float(by_cluster.dof(np.array([[0.0, 1.0]]))[0])
    if variance <= 0:
        return None
    return float(2 * stats.t.sf(abs(slope) / math.sqrt(variance), dof))


def _difference(result: PairSlope, arms: PairedArms, ln_m: Floats) -> Floats:
    """D that the averaged curve gives for ln m: 2 e tanh(a (ln m + ln(C_v/C_b)) / 2)."""
    a = float(result.exponent[0])
    excess = result.excess[0]
    overhead = np.log(arms.compute_variant / arms.compute_baseline)
    value: Floats = 2 * excess * np.tanh(a * (ln_m + overhead) / 2)
    return value


def _predict(model: str, result: PairSlope, arms: PairedArms, x: Floats, parameters: Floats) -> Floats:
    """Paired differences under ``model``."""
    first, second = (*parameters, 0.0, 0.0)[:2]
    if model == "M3":
        return np.asarray(_difference(result, arms, np.full_like(x, first)) + second)
    return _difference(result, arms, np.asarray(first + second * x))


def _least_squares(
    predict: Callable[[Floats], Floats], difference: Floats, weights: Floats, free: int, start: float
) -> tuple[Floats, float]:
    root = np.sqrt(weights / weights.mean())
    if not free:
        rest = root * (difference - predict(np.array([])))
        return np.array([]), float(rest @ rest)

    def residuals(parameters: Floats) -> Floats:
        return np.asarray(root * (difference - predict(parameters)))

    solution = optimize.least_squares(residuals, [start, 0.0][:free], x_scale="jac")
    return np.asarray(solution.x), float(2 * solution.cost)


def _tests(
    result: PairSlope, arms: PairedArms, x: Floats, fitted: dict[str, tuple[Floats, float]]
) -> dict[str, tuple[str, float | None]]:
    n = len(x)
    overhead = np.log(arms.compute_variant / arms.compute_baseline)
    log_ratio = (result.rung_ln_m[0] + overhead) * result.exponent[0]
    variance = float(result.pair_variance[0])
    mean_p = None
    if variance > 0:
        t = abs(float(result.ln_m[0])) / math.sqrt(variance)
        mean_p = float(2 * stats.t.sf(t, float(result.pair_dof[0])))
    return {
        "M0": ("t-test of m = 1 on the rungs' paired values", mean_p),
        "M1": ("", None),
        "M2": (
            "paired slope: t-test of the slope of ln[(L_b - E)/(L_v - E)] on ln C",
            paired_slope_test(x, log_ratio, arms.num_seeds, arms.clusters),
        ),
        "M3": (
            "F-test of M3 against M1 on the paired differences"
            + (": not given, runs that share a trunk are not independent" if arms.clustered else ""),
            None if arms.clustered else _f_test(fitted["M1"][1], fitted["M3"][1], 1, n - 2),
        ),
    }


def _f_test(rss_small: float, rss_large: float, added: int, dof: int) -> float | None:
    if rss_large <= 0 or dof < 1:
        return None
    ratio = (rss_small - rss_large) / added / (rss_large / dof)
    return float(stats.f.sf(max(ratio, 0.0), added, dof))


def _aicc(rss: float, n: int, parameters: int) -> float | None:
    """n ln(rss/n) + 2 k + 2 k (k + 1)/(n - k - 1), k counting the variance; None where it is not defined."""
    if n - parameters - 1 < 1 or rss <= 0:
        return None
    return n * math.log(rss / n) + 2 * parameters + 2 * parameters * (parameters + 1) / (n - parameters - 1)
