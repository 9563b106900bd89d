"""m between the compute-optimal frontiers of two surfaces L(N, D), for grids that vary N and D apart.

    L = E + A N^-alpha + B D^-beta, one surface an arm; m = C_b(L) / C

at the largest compute C of the variant: L is the least loss the variant's surface gives for C, C_b(L) the
least compute the baseline's needs for it. C = k N D, with k of each arm from its runs on the axis.
On a ladder N and D rise together and the surface is not determined: it is refused. Interval:
`paired_variance`.
"""

import math

import numpy as np

from analysis.fit_result import FitResult, FitStatus
from analysis.forms.chinchilla import Chinchilla
from analysis.multipliers.base import (
    MULTIPLIERS,
    Estimate,
    PairedArms,
    RefusalError,
    RefusalReason,
    check_arms,
    student_interval,
)
from analysis.multipliers.clustered import by_cluster
from analysis.multipliers.paired_laws import FittedArm, paired_variance
from analysis.multipliers.without_noise import estimate_without_noise
from analysis.solve import fit

FORM = Chinchilla()


@MULTIPLIERS.register("surface")
@by_cluster
def surface(arms: PairedArms, level: float) -> Estimate:
    """m at the largest compute of the variant, along the compute-optimal frontiers.

    Raises:
        RefusalError: see `check_arms` (six sizes are needed); a surface that is not determined; a loss that
            the baseline never reaches.
    """
    check_arms(arms, len(FORM.parameters) + 1)
    known = estimate_without_noise(arms, level)
    if known is not None:
        return known
    if not (np.isfinite(arms.params_baseline).all() and np.isfinite(arms.params_variant).all()):
        raise RefusalError(RefusalReason.NO_COMPUTE, "a surface needs the parameters of every run")
    _check_spread(arms)
    inputs_b = {"params": arms.params_baseline, "tokens": arms.tokens}
    inputs_v = {"params": arms.params_variant, "tokens": arms.tokens}
    base, other, fixed = _surfaces(arms, inputs_b, inputs_v)
    at = float(arms.compute_variant.max())
    k_b = _flops_per_param_token(arms.compute_baseline, inputs_b)
    k_v = _flops_per_param_token(arms.compute_variant, inputs_v)

    def ln_m(left: dict[str, float], right: dict[str, float]) -> float:
        loss = FORM.frontier(right, at, k_v).loss
        return math.log(float(FORM.inverse_frontier(left, loss, k_b))) - math.log(at)

    value = ln_m(base.parameters, other.parameters)
    if not math.isfinite(value):
        raise RefusalError(
            RefusalReason.NOT_IDENTIFIABLE,
            f"the baseline's surface never reaches {arms.variant}'s loss at {at:.4g}",
        )
    variance, dof = paired_variance(
        FORM,
        FittedArm(base.parameters, inputs_b, arms.loss_baseline),
        FittedArm(other.parameters, inputs_v, arms.loss_variant),
        arms.num_seeds,
        ln_m,
        fixed,
    )
    if not (math.isfinite(variance) and variance > 0):
        raise RefusalError(
            RefusalReason.NO_VARIANCE, "the surfaces fit to the last digit, or their error is open"
        )
    lo, hi = student_interval(value, math.sqrt(variance), dof, level)
    return Estimate(
        ln_m=value,
        lo=lo,
        hi=hi,
        sd=math.sqrt(variance),
        dof=dof,
        level=level,
        form=FORM.name,
        irreducible=_rule(base, other, fixed),
        at=at,
        extrapolated=math.exp(value) * at > float(arms.compute_baseline.max()),
    )


MIN_APART = 0.4
"""Least scatter (sd) of ln tokens about its line in ln parameters: 0 on a ladder of constant tokens a
parameter; a curved ladder of 0.2 gave intervals of m over four decades; three budgets over 4x have 0.6."""


def _check_spread(arms: PairedArms) -> None:
    ln_n, ln_d = np.log(arms.params_baseline), np.log(arms.tokens)
    n, d = ln_n - ln_n.mean(), ln_d - ln_d.mean()
    rest = d - n * float(n @ d) / max(float(n @ n), 1e-300)
    apart = math.sqrt(float(np.mean(rest**2)))
    if apart < MIN_APART:
        raise RefusalError(
            RefusalReason.NOT_IDENTIFIABLE,
            f"on a ladder tokens follow parameters (to {apart:.2g} in ln D, {MIN_APART:g} needed): a surface "
            "needs a grid that varies them apart",
        )


def _surfaces(
    arms: PairedArms, inputs_b: dict[str, np.ndarray], inputs_v: dict[str, np.ndarray]
) -> tuple[FitResult, FitResult, dict[str, float]]:
    """The arms' surfaces and what was held: E at 0 in both where either arm's best E is not above 0."""
    fixed: dict[str, float] = {}
    while True:
        base, other = (
            fit(FORM, inputs, loss, weights=arms.num_seeds, group=arm, fixed=fixed)
            for arm, inputs, loss in (
                (arms.baseline, inputs_b, arms.loss_baseline),
                (arms.variant, inputs_v, arms.loss_variant),
            )
        )
        if not fixed and FitStatus.BOUND_HIT in (base.status, other.status):
            fixed = {"E": 0.0}
            continue
        for result in (base, other):
            if result.status is not FitStatus.CONVERGED:
                raise RefusalError(
                    RefusalReason.NOT_IDENTIFIABLE,
                    f"surface of {result.group}: {result.status.value}: {result.message}",
                )
        return base, other, fixed


def _rule(base: FitResult, other: FitResult, fixed: dict[str, float]) -> str:
    return "free: 0 (bound)" if fixed else f"free: {base.parameters['E']:.4g} and {other.parameters['E']:.4g}"


def _flops_per_param_token(compute: np.ndarray, inputs: dict[str, np.ndarray]) -> float:
    """Geometric mean of C / (N D): 6 on the axis 6nd."""
    return float(np.exp(np.mean(np.log(compute) - np.log(inputs["params"]) - np.log(inputs["tokens"]))))
