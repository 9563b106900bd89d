"""Headline with separate exponents: ln m runs along a line in ln C, read at the largest compute.

    ln m(x) = mean d + s (x - mean x),   d_i the headline's rung values, x = ln C

Variance = scatter about the line x leverage (1 + (x - mean x)^2 / s_x^2) / K + the curve's error through
the same weights; Satterthwaite. It answers when the paired slope test prefers separate exponents (M2), and
costs a wide interval at the ends of the ladder. An E that may not be negative errs to one side, and so does
the end of the line: with E = 0, 6x and a lack of fit of .005 nats its median is 1.26 for 1.25, a twelfth of
its interval, which still covers 95 to 97 %.
"""

import math
from dataclasses import dataclass

import numpy as np

from analysis.multipliers.base import (
    MULTIPLIERS,
    Estimate,
    Floats,
    PairedArms,
    RefusalError,
    RefusalReason,
    check_arms,
    student_interval,
)
from analysis.multipliers.clustered import by_cluster
from analysis.multipliers.pair_arrays import estimate_pair_slope
from analysis.multipliers.pair_slope import inputs_of, pair_slope


@dataclass(frozen=True)
class Trend:
    """ln m at one point of the line for S studies."""

    ln_m: Floats
    variance: Floats
    dof: Floats


def estimate_trend(
    x_baseline_SK: Floats,
    x_variant_SK: Floats,
    loss_baseline_SK: Floats,
    loss_variant_SK: Floats,
    seeds_SK: Floats,
    at_S: Floats,
) -> Trend:
    """The line's value at ``at_S`` (ln compute of the variant) for S studies of K rungs."""
    inputs = (x_baseline_SK, x_variant_SK, loss_baseline_SK, loss_variant_SK, seeds_SK)
    result = estimate_pair_slope(*inputs)
    w_SK = seeds_SK / seeds_SK.sum(-1, keepdims=True)
    centre_S1 = (w_SK * x_variant_SK).sum(-1, keepdims=True)
    z_SK = x_variant_SK - centre_S1
    spread_S1 = (w_SK * z_SK**2).sum(-1, keepdims=True)
    share_SK = w_SK * (1 + z_SK * (at_S[:, None] - centre_S1) / spread_S1)
    rung_SK = result.rung_ln_m
    slope_S1 = (w_SK * z_SK * rung_SK).sum(-1, keepdims=True) / spread_S1
    rest_SK = rung_SK - (w_SK * rung_SK).sum(-1, keepdims=True) - slope_S1 * z_SK
    dof = x_variant_SK.shape[1] - 2.0
    scatter_S = (w_SK * rest_SK**2).sum(-1) / dof
    line_S = scatter_S * (share_SK**2 / w_SK).sum(-1)
    through_S3 = (share_SK[..., None] * result.gradient).sum(1)
    curve_S = np.einsum("si,sij,sj->s", through_S3, result.covariance, through_S3)
    variance_S = line_S + curve_S
    with np.errstate(invalid="ignore", divide="ignore"):
        dof_S = variance_S**2 / (line_S**2 / dof + curve_S**2 / result.slope_dof)
    return Trend((share_SK * rung_SK).sum(-1), variance_S, dof_S)


@MULTIPLIERS.register("pair_trend")
@by_cluster
def pair_trend(arms: PairedArms, level: float) -> Estimate:
    """m at the largest compute of the variant, exponents of the arms apart.

    Raises:
        RefusalError: as the headline's; or no scatter about the line.
    """
    check_arms(arms)
    headline = pair_slope(arms, level)
    if headline.without_noise:
        return headline
    at = float(arms.compute_variant.max())
    trend = estimate_trend(*inputs_of(arms), np.array([math.log(at)]))
    ln_m, variance, dof = float(trend.ln_m[0]), float(trend.variance[0]), float(trend.dof[0])
    if not math.isfinite(ln_m) or variance <= 0:
        raise RefusalError(RefusalReason.NO_VARIANCE, "the sizes lie on a line to the last digit")
    lo, hi = student_interval(ln_m, math.sqrt(variance), dof, level)
    return Estimate(
        ln_m=ln_m,
        lo=lo,
        hi=hi,
        sd=math.sqrt(variance),
        dof=dof,
        level=level,
        form=headline.form,
        irreducible=headline.irreducible,
        at=at,
        extrapolated=math.exp(ln_m) * at > float(arms.compute_baseline.max()),
        facts=dict(headline.facts),
    )
