"""The arithmetic of the headline for many studies at once; `analysis.multipliers.pair_slope` has the formula.

Arrays have a leading axis S of studies (1 for a real one) and K rungs.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.clusters import Groups, cluster_covariance, collapse, num_groups
from analysis.multipliers.averaged_curve import Flags, fit_curve
from analysis.multipliers.base import Floats


@dataclass(frozen=True)
class PairSlope:
    """The estimates of S studies (leading axis of every array); NaN where a study has none."""

    ln_m: Floats
    rung_ln_m: Floats
    """S x K: the value of every rung."""
    pair_variance: Floats
    pair_dof: Floats
    slope_variance: Floats
    slope_dof: Floats
    exponent: Floats
    irreducible: Floats
    profiled: Flags
    """Whether E is a parameter (else it is held)."""
    excess: Floats
    """S x K: the arms' mean loss above E on the curve, nats."""
    gradient: Floats
    """S x K x 3: derivatives of ``rung_ln_m`` by the curve's (a, A, E)."""
    covariance: Floats
    """S x 3 x 3, of (a, A, E)."""
    residual_sd: Floats
    """Scatter of the arms' mean loss about the curve, nats."""

    @property
    def variance(self) -> Floats:
        """Of ln m."""
        return self.pair_variance + self.slope_variance

    @property
    def dof(self) -> Floats:
        """Satterthwaite's degrees of freedom of `variance`."""
        with np.errstate(invalid="ignore", divide="ignore"):
            dof: Floats = self.variance**2 / (
                self.pair_variance**2 / self.pair_dof + self.slope_variance**2 / self.slope_dof
            )
        return dof


def estimate_pair_slope(
    x_baseline_SK: Floats,
    x_variant_SK: Floats,
    loss_baseline_SK: Floats,
    loss_variant_SK: Floats,
    seeds_SK: Floats,
    irreducible: float | None = None,
    clusters: Groups | None = None,
) -> PairSlope:
    """The headline estimate for S studies of K rungs at once.

    Rungs of one cluster (`analysis.clusters`) count as one: the scatter is that of the clusters' means, and
    the curve's error, with its degrees of freedom, is that of `cluster_covariance`.

    Args:
        x_baseline_SK: ln compute of the baseline.
        x_variant_SK: ln compute of the variant at the same tokens.
        loss_baseline_SK: mean loss over seeds, nats.
        loss_variant_SK: likewise.
        seeds_SK: pairs behind each mean.
        irreducible: E held at a value, or None to profile it.
        clusters: K numbers, the same for all studies; None: every rung stands alone.
    """
    inputs = (x_baseline_SK, x_variant_SK, loss_baseline_SK, loss_variant_SK, seeds_SK)
    groups = np.arange(x_baseline_SK.shape[1]) if clusters is None else clusters
    held = _held(*inputs, groups, 0.0 if irreducible is None else irreducible)
    if irreducible is not None or num_groups(groups) < 4:
        return held
    profiled = _profiled(*inputs, groups)

    def choose(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return np.where(profiled.profiled.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    pairs = ((getattr(profiled, f.name), getattr(held, f.name)) for f in fields(PairSlope))
    return PairSlope(*(choose(a, b) for a, b in pairs))


def _held(
    x_baseline_SK: Floats,
    x_variant_SK: Floats,
    loss_baseline_SK: Floats,
    loss_variant_SK: Floats,
    seeds_SK: Floats,
    groups: Groups,
    irreducible: float,
) -> PairSlope:
    """E known: one regression in logarithms."""
    x_SK, overhead_SK = (x_baseline_SK + x_variant_SK) / 2, x_variant_SK - x_baseline_SK
    w_SK = seeds_SK / seeds_SK.sum(-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        log_b, log_v = np.log(loss_baseline_SK - irreducible), np.log(loss_variant_SK - irreducible)
    y_SK, log_ratio_SK = (log_b + log_v) / 2, log_b - log_v
    z_SK, dy_SK = x_SK - _mean(w_SK, x_SK), y_SK - _mean(w_SK, y_SK)
    spread_S = (w_SK * z_SK**2).sum(-1)
    exponent_S = -(w_SK * z_SK * dy_SK).sum(-1) / spread_S
    rest_SK = dy_SK + exponent_S[:, None] * z_SK
    num_rungs = x_SK.shape[1]
    residual_S = (w_SK * rest_SK**2).sum(-1) / (num_rungs - 2)
    rung_SK = log_ratio_SK / exponent_S[:, None] - overhead_SK
    ln_m = _mean(w_SK, rung_SK)
    gradient_SK3 = np.zeros((*x_SK.shape, 3))
    gradient_SK3[..., 0] = -log_ratio_SK / exponent_S[:, None] ** 2
    covariance_S33 = np.zeros((len(x_SK), 3, 3))
    covariance_S33[:, 0, 0] = residual_S / spread_S
    num, ones = num_groups(groups), np.ones(len(x_SK))
    slope_dof = ones * (num - 2)
    if num < num_rungs:
        line_SK2 = np.stack([np.ones_like(z_SK), -z_SK], axis=-1)
        by_cluster = cluster_covariance(groups, line_SK2, w_SK, rest_SK)
        covariance_S33[:, 0, 0] = by_cluster.covariance[:, 1, 1]
        slope_dof = by_cluster.dof(np.stack([0 * ones, ones], axis=-1))
    weight_SG, value_SG = collapse(groups, w_SK, rung_SK)
    excess_S = np.exp(_mean(w_SK, y_SK))[:, 0]
    return PairSlope(
        ln_m=ln_m[:, 0],
        rung_ln_m=rung_SK,
        pair_variance=(weight_SG * (value_SG - ln_m) ** 2).sum(-1) / (num - 1),
        pair_dof=ones * (num - 1),
        slope_variance=_through(w_SK, gradient_SK3, covariance_S33),
        slope_dof=slope_dof,
        exponent=exponent_S,
        irreducible=ones * irreducible,
        profiled=np.zeros(len(x_SK), bool),
        gradient=gradient_SK3,
        covariance=covariance_S33,
        excess=excess_S[:, None] * np.exp(-exponent_S[:, None] * z_SK),
        residual_sd=np.sqrt(residual_S * num_rungs) * excess_S,
    )


def _profiled(
    x_baseline_SK: Floats,
    x_variant_SK: Floats,
    loss_baseline_SK: Floats,
    loss_variant_SK: Floats,
    seeds_SK: Floats,
    groups: Groups,
) -> PairSlope:
    """E from the curve; `PairSlope.profiled` says where that is a law."""
    x_SK, overhead_SK = (x_baseline_SK + x_variant_SK) / 2, x_variant_SK - x_baseline_SK
    w_SK = seeds_SK / seeds_SK.sum(-1, keepdims=True)
    difference_SK = loss_baseline_SK - loss_variant_SK
    curve = fit_curve(x_SK, (loss_baseline_SK + loss_variant_SK) / 2, seeds_SK)
    excess_SK = curve.excess(x_SK)
    above_SK, below_SK = excess_SK + difference_SK / 2, excess_SK - difference_SK / 2
    a = curve.exponent[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        log_ratio_SK = np.log(above_SK) - np.log(below_SK)
        by_excess_SK = 1 / above_SK - 1 / below_SK
    rung_SK = log_ratio_SK / a - overhead_SK
    ln_m = _mean(w_SK, rung_SK)
    # Derivatives of the rungs' values by (a, A, E); E acts only through the a and A that it drags along.
    z_SK = x_SK - curve.centre[:, None]
    gradient_SK3 = np.stack(
        [
            -log_ratio_SK / a**2 - by_excess_SK * excess_SK * z_SK / a,
            by_excess_SK * excess_SK / curve.amplitude[:, None] / a,
            np.zeros_like(rung_SK),
        ],
        axis=-1,
    )
    # An error of E (a and A following) tilts the rungs' values along z, to first order whatever m is.
    # The direction must not be taken from the differences themselves: at m = 1 they are noise, and
    # intervals then cover 90.5 % instead of 95 %.
    num = num_groups(groups)
    weight_SG, place_SG = collapse(groups, w_SK, z_SK)
    deviation_SG = collapse(groups, w_SK, rung_SK)[1] - ln_m
    with np.errstate(invalid="ignore", divide="ignore"):
        tilt_S1 = _mean(weight_SG, place_SG * deviation_SG) / _mean(weight_SG, place_SG**2)
    rest_SG = deviation_SG - tilt_S1 * place_SG
    curve_S33, ones = curve.covariance, np.ones(len(x_SK))
    slope_dof = ones * (num - 3.0)
    if num < x_SK.shape[1]:
        mean_SK = (loss_baseline_SK + loss_variant_SK) / 2
        left_SK = mean_SK - curve.irreducible[:, None] - excess_SK
        by_cluster = cluster_covariance(groups, curve.jacobian(x_SK), seeds_SK, left_SK)
        curve_S33 = by_cluster.covariance
        slope_dof = by_cluster.dof((w_SK[..., None] * gradient_SK3).sum(1))
    return PairSlope(
        ln_m=ln_m[:, 0],
        rung_ln_m=rung_SK,
        pair_variance=(weight_SG * rest_SG**2).sum(-1) / (num - 2),
        pair_dof=ones * (num - 2),
        slope_variance=_through(w_SK, gradient_SK3, curve_S33),
        slope_dof=slope_dof,
        exponent=curve.exponent,
        irreducible=curve.irreducible,
        profiled=curve.inside,
        gradient=gradient_SK3,
        covariance=curve_S33,
        excess=excess_SK,
        residual_sd=np.sqrt(curve.rss / seeds_SK.mean(-1) / curve.residual_dof),
    )


def _through(weight_SK: Floats, gradient_SK3: Floats, covariance_S33: Floats) -> Floats:
    """Variance that the curve's error gives a weighted sum of the rungs' values."""
    total_S3 = (weight_SK[..., None] * gradient_SK3).sum(1)
    variance: Floats = np.einsum("si,sij,sj->s", total_S3, covariance_S33, total_S3)
    return variance


def _mean(weight_SK: Floats, values_SK: Floats) -> Floats:
    """Weighted mean over rungs, S x 1."""
    mean: Floats = (weight_SK * values_SK).sum(-1, keepdims=True)
    return mean
