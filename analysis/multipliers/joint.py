"""One law for both arms with ln m as a parameter, and its profile likelihood.

    L_b = E + A C_b^-a,   L_v = E + A (m C_v)^-a

fitted to the arms' mean loss and to their difference at every rung. The two are independent where the
arms are equally noisy, and have their own variances: the mean carries the lack of fit that the arms
share, the difference does not. Interval: all m whose best (E, a, A) raise the weighted sum of squares by
less than t(nu)^2 x its minimum / dof, dof = 2 K - 4 (2 K - 3 where E is on its bound 0) and nu the
headline's degrees of freedom: the two variances are estimated from as few sizes here as there.

Against the headline: the differences' shape also informs E and a, so it is narrower where the law
holds and wrong where the arms' exponents differ.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, stats

from analysis.multipliers.base import (
    MULTIPLIERS,
    Estimate,
    Floats,
    PairedArms,
    RefusalError,
    RefusalReason,
)
from analysis.multipliers.clustered import by_cluster
from analysis.multipliers.pair_arrays import PairSlope, estimate_pair_slope
from analysis.multipliers.pair_slope import inputs_of, pair_slope

MAX_LN_M = math.log(100)
"""Multipliers searched: a hundredth to a hundredfold."""


@MULTIPLIERS.register("joint")
@by_cluster
def joint(arms: PairedArms, level: float) -> Estimate:
    """Best ln m of the joint law and its profile-likelihood interval.

    Raises:
        RefusalError: as the headline's; or the likelihood does not close within 0.01 to 100.
    """
    headline = pair_slope(arms, level)
    if headline.without_noise or headline.dof is None:
        return headline
    law = _Law(arms, estimate_pair_slope(*inputs_of(arms)))
    if not law.finite(headline.ln_m):
        raise RefusalError(RefusalReason.NOT_IDENTIFIABLE, "the headline is no start for a joint law")
    ln_m, floor, base = law.minimum(headline.ln_m)
    dof = 2.0 * len(arms.sizes) - (4 if base > 0 else 3)
    quantile = float(stats.t.ppf(0.5 + level / 2, headline.dof))
    allowed = floor * (1 + quantile**2 / dof)
    ends = [_crossing(law, ln_m, allowed, sign * max(headline.sd, 1e-6)) for sign in (-1, 1)]
    if any(end is None for end in ends):
        raise RefusalError(
            RefusalReason.NOT_IDENTIFIABLE, "the profile likelihood of m stays open between 0.01 and 100"
        )
    lo, hi = (float(end) for end in ends if end is not None)
    return Estimate(
        ln_m=ln_m,
        lo=lo,
        hi=hi,
        sd=(hi - lo) / 2 / quantile,
        dof=headline.dof,
        level=level,
        form="saturating" if base > 0 else "power_law",
        irreducible=f"profiled jointly: {base:.4g}",
        facts={"irreducible": base},
    )


class _Law:
    """The joint law of one study; weights from the headline's two variances."""

    def __init__(self, arms: PairedArms, start: PairSlope) -> None:
        self.x_b, self.x_v = np.log(arms.compute_baseline), np.log(arms.compute_variant)
        self.centre = float(np.average((self.x_b + self.x_v) / 2, weights=arms.num_seeds))
        self.mean = (arms.loss_baseline + arms.loss_variant) / 2
        self.difference = arms.loss_baseline - arms.loss_variant
        self.root = np.sqrt(arms.num_seeds / arms.num_seeds.mean())
        slope = start.exponent[0] * start.excess[0]
        scatter = math.sqrt(float(start.pair_variance[0]) * len(arms.sizes)) * float(np.mean(slope))
        self.sd_mean = max(float(start.residual_sd[0]), 1e-12)
        self.sd_difference = max(scatter, 1e-12)
        self.lowest = float(min(arms.loss_baseline.min(), arms.loss_variant.min()))
        excess = float(start.excess[0].mean())
        self.start = np.array(
            [float(start.irreducible[0]), math.log(float(start.exponent[0])), math.log(excess)]
        )

    def finite(self, ln_m: float) -> bool:
        """Whether the search can start from the headline."""
        start = np.append(self.start, ln_m)
        return bool(np.isfinite(start).all() and np.isfinite(self.residuals(start)).all())

    def residuals(self, p: Floats) -> Floats:
        """Weighted residuals of mean and difference; p = (E, ln a, ln A, ln m)."""
        b, v, _ = self._arms(p)
        mean = (self.mean - p[0] - (b + v) / 2) / self.sd_mean
        difference = (self.difference - (b - v)) / self.sd_difference
        return np.concatenate([mean * self.root, difference * self.root])

    def jacobian(self, p: Floats) -> Floats:
        """Derivatives of `residuals`, 2 K x 4."""
        b, v, a = self._arms(p)
        by_a_b, by_a_v = -a * (self.x_b - self.centre) * b, -a * (self.x_v + p[3] - self.centre) * v
        zero = np.zeros_like(b)
        mean = np.stack([np.ones_like(b), (by_a_b + by_a_v) / 2, (b + v) / 2, -a * v / 2])
        difference = np.stack([zero, by_a_b - by_a_v, b - v, a * v])
        blocks = [-mean * self.root / self.sd_mean, -difference * self.root / self.sd_difference]
        return np.concatenate(blocks, axis=1).T

    def minimum(self, ln_m: float) -> tuple[float, float, float]:
        """Best ln m, the sum of squares there, and E."""
        starts = [np.append(self.start, ln_m), np.append(self.start, ln_m)]
        starts[1][0] = 0.0
        found = [self._solve(self.residuals, self.jacobian, start) for start in starts]
        best = min(found, key=lambda solution: float(solution.cost))
        self.start = best.x[:3].copy()
        return float(best.x[3]), float(2 * best.cost), float(best.x[0]) if best.x[0] > AT_BOUND else 0.0

    def profile(self, ln_m: float) -> float:
        """Sum of squares at ``ln_m``, everything else at its best."""
        solution = self._solve(
            lambda p: self.residuals(np.append(p, ln_m)),
            lambda p: self.jacobian(np.append(p, ln_m))[:, :3],
            self.start,
        )
        return float(2 * solution.cost)

    def _arms(self, p: Floats) -> tuple[Floats, Floats, float]:
        a, amplitude = math.exp(p[1]), math.exp(p[2])
        return (
            amplitude * np.exp(-a * (self.x_b - self.centre)),
            amplitude * np.exp(-a * (self.x_v + p[3] - self.centre)),
            a,
        )

    def _solve(
        self, residuals: Callable[[Floats], Floats], jacobian: Callable[[Floats], Floats], start: Floats
    ) -> optimize.OptimizeResult:
        lower = np.array([0.0, math.log(1e-3), -30.0, -MAX_LN_M][: len(start)])
        upper = np.array([0.999 * self.lowest, math.log(3.0), 5.0, MAX_LN_M][: len(start)])
        inside = np.clip(start, lower + 1e-9, upper - 1e-9)
        return optimize.least_squares(
            residuals, inside, jac=jacobian, bounds=(lower, upper), x_scale="jac", xtol=1e-10, ftol=1e-10
        )


AT_BOUND = 1e-4
"""E below this, nats, is called 0: the search only approaches its bound."""


def _crossing(law: _Law, ln_m: float, allowed: float, step: float) -> float | None:
    """Where the profile crosses ``allowed`` on the side of ``step``; None if it does not."""
    near, far = ln_m, ln_m + step
    while abs(far) < MAX_LN_M and law.profile(far) < allowed:
        near, far, step = far, far + 2 * step, 2 * step
    if abs(far) >= MAX_LN_M:
        far = math.copysign(MAX_LN_M, far)
        if law.profile(far) < allowed:
            return None
    return float(optimize.brentq(lambda value: law.profile(value) - allowed, near, far, xtol=1e-5))
