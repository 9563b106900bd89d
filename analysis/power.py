"""How many sizes and seeds tell m1 from m0, and what interval a planned grid will give.

First guess, known variance: pairs >= 2 (1 - rho) [(z + z') sigma / (g ln(m1/m0))]^2. At few sizes it
promises too much (56 % power for 80 % at five sizes). The planner uses the headline's own variance and
degrees of freedom:

    var(ln m) = 2 sigma^2 (1 - rho) / (sum_i n_i g^2) + (ln m)^2 (sigma_g / g)^2
    power = P(|t'(dof, ln(m1/m0) / sd)| > t(dof)),  t' noncentral

dof about K - 1, or K - 2 where E is profiled, combined with the slope's by Satterthwaite; with E = 0 the
profile is above 0 in every second study, and the two cases are averaged. `check_power` simulates the
same study.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from analysis.losses import MAX_LOSS, MIN_LOSS
from analysis.multipliers.averaged_curve import MAX_EXPONENT
from analysis.multipliers.base import LEVEL, MAX_LN, MIN_SIZES
from analysis.multipliers.pair_arrays import estimate_pair_slope
from analysis.simulation import Design, intervals, simulate
from attnres.errors import UserError

MAX_SEEDS, MAX_SIZES = 1000, 100
"""Beyond any study that is trained: a plan that needs more is told that it does."""


@dataclass(frozen=True)
class Expected:
    """What a study of a design will give for a true multiplier."""

    compute_multiplier: float
    lo: float
    hi: float
    sd_ln_m: float
    dof: float
    power: float
    """Chance that the interval excludes the other multiplier."""


def expected(design: Design, m1: float, m0: float = 1.0, level: float = LEVEL) -> Expected:
    """Expected interval of ``m1`` and the power to tell it from ``m0``.

    Raises:
        UserError: a design or multiplier that makes no sense; it is named.
    """
    check_design(design, m1, m0)
    cases = [_spread(design, m1, profiled) for profiled in ((True,) if design.irreducible else (False, True))]
    sd, dof = cases[0]
    quantiles = [float(stats.t.ppf(0.5 + level / 2, dof)) for _, dof in cases]
    # The mean of the estimated sd, so that the interval is the expected one and not the luckiest.
    half = float(np.mean([q * sd * _mean_chi(dof) for q, (sd, dof) in zip(quantiles, cases, strict=True)]))
    if not half < MAX_LN:
        raise UserError("the interval would span more than a factor of a million: noise without a slope")
    effect = abs(math.log(m1 / m0))
    powers = [_power(effect / sd, dof, q) for q, (sd, dof) in zip(quantiles, cases, strict=True)]
    return Expected(
        compute_multiplier=m1,
        lo=m1 * math.exp(-half),
        hi=m1 * math.exp(half),
        sd_ln_m=sd,
        dof=dof,
        power=float(np.mean(powers)),
    )


def seeds_needed(
    design: Design, m1: float, m0: float = 1.0, *, power: float = 0.8, level: float = LEVEL
) -> int | None:
    """Least seeds a size that reach ``power``; None if `MAX_SEEDS` do not (slope error, too few sizes)."""
    if not 0 < power < 1:
        raise UserError(f"power is {power}: a number between 0 and 1 is needed")

    def reached(seeds: int) -> bool:
        return expected(replace(design, num_seeds=seeds), m1, m0, level).power >= power

    if not reached(MAX_SEEDS):
        return None
    low, high = 0, 1
    while not reached(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def pairs_first_guess(
    design: Design, m1: float, m0: float = 1.0, *, power: float = 0.8, level: float = LEVEL
) -> float:
    """2 (1 - rho) [(z + z') sigma / (g ln(m1/m0))]^2: too few at small K, for orientation."""
    check_design(design, m1, m0)
    if not 0 < power < 1:
        raise UserError(f"power {power}: must be between 0 and 1")
    z = float(stats.norm.ppf(0.5 + level / 2) + stats.norm.ppf(power))
    return 2 * (1 - design.correlation) * (z * design.seed_sd / (design.slope * math.log(m1 / m0))) ** 2


def check_power(
    design: Design, m1: float, m0: float = 1.0, *, num_studies: int = 4000, seed: int = 0
) -> float:
    """Share of simulated studies of ``m1`` whose interval excludes ``m0``."""
    check_design(design, m1, m0)
    lo, hi = intervals(estimate_pair_slope(*simulate(design, m1, num_studies, seed).inputs))
    other = math.log(m0)
    side = lo > other if m1 > m0 else hi < other
    return float(np.mean(side))


def check_design(design: Design, m1: float, m0: float) -> None:
    """Refuse designs that say nothing (`UserError`)."""
    seeds = _seeds(design)
    sigma, rho, base = design.seed_sd, design.correlation, design.irreducible
    problems = [
        (design.num_sizes < MIN_SIZES, f"{design.num_sizes} sizes: the headline needs {MIN_SIZES} distinct"),
        (len(seeds) != design.num_sizes, f"{len(seeds)} numbers of seeds for {design.num_sizes} sizes"),
        (min(seeds, default=1) < 1, f"{min(seeds, default=1)} seeds: at least 1 is needed"),
        (design.num_sizes > MAX_SIZES, f"{design.num_sizes} sizes: at most {MAX_SIZES} are simulated"),
        (not 0 < sigma < MAX_LOSS, f"seed sd {sigma}: must be positive and finite"),
        (not -1 < rho < 1, f"correlation {rho}: must be between -1 and 1"),
        (not 0 <= design.lack_of_fit < MAX_LOSS, f"lack of fit {design.lack_of_fit}: must not be negative"),
        (not 1 < design.compute_range < 1e12, f"compute range {design.compute_range}: above 1, below 1e12"),
        (
            not 0 < design.exponent <= MAX_EXPONENT,
            f"exponent {design.exponent}: above 0, to {MAX_EXPONENT:g}",
        ),
        (
            not MIN_LOSS <= design.loss <= MAX_LOSS,
            f"loss {design.loss}: from {MIN_LOSS:g} to {MAX_LOSS:g} nats",
        ),
        (not 0 <= base < design.loss, f"irreducible loss {base}: from 0 to below the loss {design.loss}"),
        (not all(1e-3 <= m <= 1e3 for m in (m1, m0)), f"multipliers {m1} and {m0}: from 0.001 to 1000"),
        (m1 == m0, f"both multipliers are {m1}: there is nothing to tell apart"),
    ]
    for wrong, message in problems:
        if wrong:
            raise UserError(message)


def _seeds(design: Design) -> Sequence[int]:
    if isinstance(design.num_seeds, int):
        return (design.num_seeds,) * design.num_sizes
    return design.num_seeds


def _spread(design: Design, m: float, profiled: bool) -> tuple[float, float]:
    """Standard deviation of ln m and its degrees of freedom, by the headline's formulas."""
    n = np.asarray(_seeds(design), float)
    w = n / n.sum()
    x = np.linspace(-0.5, 0.5, design.num_sizes) * math.log(design.compute_range)
    z = x - w @ x
    excess = (design.loss - design.irreducible) * np.exp(-design.exponent * x)
    slope = design.exponent * excess
    pair_variance = 2 * design.seed_sd**2 * (1 - design.correlation) * float((w**2 / n / slope**2).sum())
    mean_variance = design.lack_of_fit**2 + design.seed_sd**2 * (1 + design.correlation) / 2 / n
    columns = [-z * excess, excess] + ([np.ones_like(x)] if profiled else [])
    jacobian = np.stack(columns, axis=-1)
    weighted = jacobian * n[:, None]
    response = np.linalg.solve(weighted.T @ jacobian, weighted.T)
    covariance = (response * mean_variance) @ response.T
    total = math.log(m) + math.log1p(design.overhead)
    gradient = np.zeros(len(columns))
    gradient[0] = -total / design.exponent - float(w @ (-total * z))
    gradient[1] = -total
    slope_variance = float(gradient @ covariance @ gradient)
    num = design.num_sizes
    pair_dof, slope_dof = num - 1 - profiled, num - 2 - profiled
    variance = pair_variance + slope_variance
    dof = variance**2 / (pair_variance**2 / pair_dof + slope_variance**2 / slope_dof)
    return math.sqrt(variance), dof


def _power(effect: float, dof: float, quantile: float) -> float:
    if not math.isfinite(effect):
        return 1.0
    value = float(stats.nct.sf(quantile, dof, effect))
    # scipy's noncentral t gives NaN far out, where the power is 1.
    return value if math.isfinite(value) else 1.0


def _mean_chi(dof: float) -> float:
    """E[s] / sigma of a standard deviation with ``dof`` degrees of freedom."""
    return math.sqrt(2 / dof) * math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2))
