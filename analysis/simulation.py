"""Made-up studies by the thousand: what the headline's interval covers, and what a plan would resolve.

Losses of S studies: E + A exp(-a x) for the baseline, the same curve at x + ln m for the variant, a lack
of fit that the arms share at a rung, seed noise of correlation rho between the arms. Arrays S x K.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.clusters import Groups
from analysis.multipliers.base import LEVEL, Floats
from analysis.multipliers.pair_arrays import PairSlope, estimate_pair_slope


@dataclass(frozen=True)
class Design:
    """A study to be simulated. Losses in nats, spreads as standard deviations."""

    num_sizes: int
    num_seeds: int | tuple[int, ...]
    """Of every size, or one number a size."""
    seed_sd: float
    correlation: float = 0.0
    """Of the seed noise of two paired runs."""
    lack_of_fit: float = 0.0
    """Of the shift that both arms share at a size."""
    compute_range: float = 30.0
    exponent: float = 0.057
    irreducible: float = 0.0
    loss: float = 1.8
    """Baseline loss at the geometric middle."""
    overhead: float = 0.0
    """Extra FLOPs of the variant, as a share."""
    num_budgets: int = 1
    """Of every size, a factor of two apart around its place on the ladder: branches of one trunk."""
    trunk_share: float = 0.0
    """Of the seed variance that the branches of one trunk have in common."""

    @property
    def clusters(self) -> Groups:
        """Cluster of every rung: its size."""
        return np.repeat(np.arange(self.num_sizes), self.num_budgets)

    @property
    def slope(self) -> float:
        """-dL/dlnC at the middle, nats."""
        return self.exponent * (self.loss - self.irreducible)


@dataclass(frozen=True)
class Simulated:
    """Inputs of the estimators for S studies."""

    x_baseline: Floats
    x_variant: Floats
    loss_baseline: Floats
    loss_variant: Floats
    seeds: Floats

    @property
    def inputs(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """In the order the estimators take them."""
        return self.x_baseline, self.x_variant, self.loss_baseline, self.loss_variant, self.seeds


def simulate(design: Design, compute_multiplier: float, num_studies: int, seed: int) -> Simulated:
    """Draw ``num_studies`` studies in which the variant's multiplier is ``compute_multiplier``."""
    rng = np.random.default_rng(seed)
    size_K = design.clusters
    shape, sizes = (num_studies, len(size_K)), (num_studies, design.num_sizes)
    place = np.linspace(-0.5, 0.5, design.num_sizes) * math.log(design.compute_range)
    offset = math.log(2) * (np.arange(design.num_budgets) - (design.num_budgets - 1) / 2)
    x_b = np.broadcast_to(place[size_K] + np.tile(offset, design.num_sizes), shape)
    x_v = x_b + math.log1p(design.overhead)
    seeds = np.broadcast_to(np.broadcast_to(np.asarray(design.num_seeds, float), sizes)[:, size_K], shape)
    amplitude = design.loss - design.irreducible
    common = rng.normal(size=shape)
    own, shared = math.sqrt(1 - design.correlation), math.sqrt(design.correlation)
    shift = (design.irreducible + design.lack_of_fit * rng.normal(size=sizes))[:, size_K]
    noise = [shared * common + own * rng.normal(size=shape) for _ in range(2)]
    if design.trunk_share:
        trunk = rng.normal(size=sizes)
        whole, part = math.sqrt(1 - design.trunk_share), math.sqrt(design.trunk_share)
        noise = [
            whole * rest + part * (shared * trunk + own * rng.normal(size=sizes))[:, size_K] for rest in noise
        ]
    losses = [
        amplitude * np.exp(-design.exponent * at) + shift + design.seed_sd * rest / np.sqrt(seeds)
        for at, rest in zip((x_b, x_v + math.log(compute_multiplier)), noise, strict=True)
    ]
    return Simulated(x_b, x_v, losses[0], losses[1], seeds)


def intervals(result: PairSlope, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Ends of the interval of ln m for every study; infinitely wide where there is no estimate."""
    half = stats.t.ppf(0.5 + level / 2, result.dof) * np.sqrt(result.variance)
    lo = np.where(np.isfinite(half), result.ln_m - half, -np.inf)
    hi = np.where(np.isfinite(half), result.ln_m + half, np.inf)
    return lo, hi


@dataclass(frozen=True)
class Coverage:
    """What the interval did over all simulated studies."""

    covered: float
    """Share of intervals that contain the truth."""
    resolved: float
    """Share of intervals that exclude m = 1."""
    median: float
    """Median of m."""
    width: float
    """Median width of the interval of m."""


def coverage(
    design: Design,
    compute_multiplier: float,
    num_studies: int,
    seed: int,
    *,
    irreducible: float | None = None,
    clustered: bool = True,
) -> Coverage:
    """Coverage of the headline (or of the headline with E held) over simulated studies.

    ``clustered``: whether the estimator is told which rungs share a trunk.
    """
    inputs = simulate(design, compute_multiplier, num_studies, seed).inputs
    result = estimate_pair_slope(*inputs, irreducible, design.clusters if clustered else None)
    lo, hi = intervals(result)
    truth = math.log(compute_multiplier)
    return Coverage(
        covered=float(np.mean((lo <= truth) & (truth <= hi))),
        resolved=float(np.mean((lo > 0) | (hi < 0))),
        median=float(np.exp(np.nanmedian(result.ln_m))),
        width=float(np.median(np.exp(hi) - np.exp(lo))),
    )
