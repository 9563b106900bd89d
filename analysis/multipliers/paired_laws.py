"""The error of a multiplier that is read off two laws, one an arm, fitted to the same rungs.

The arms' residuals at one rung are correlated (they share its lack of fit), so the error of ln m is a
weighted sum of pairs of residuals; their 2 x 2 covariance is estimated with K - p degrees of freedom.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.forms.base import Form
from analysis.multipliers.base import Floats

LnM = Callable[[dict[str, float], dict[str, float]], float]
"""ln m of the parameters of the baseline's and the variant's law."""


@dataclass(frozen=True)
class FittedArm:
    """A law of one arm and what it was fitted to."""

    parameters: dict[str, float]
    inputs: Mapping[str, Floats]
    loss: Floats


def paired_variance(
    form: Form,
    baseline: FittedArm,
    variant: FittedArm,
    num_seeds: Floats,
    ln_m: LnM,
    fixed: Collection[str] = (),
) -> tuple[float, float]:
    """Variance of ``ln_m`` and its degrees of freedom, from the paired residuals in ln loss.

    ``fixed``: parameters that were held in both fits; they have no error.
    """
    free = [name for name in form.parameters if name not in fixed]
    both = (baseline.parameters, variant.parameters)
    influences, residuals = [], []
    for which, arm in enumerate((baseline, variant)):
        jacobian_NP = _log_jacobian(form, arm, free)
        weighted = jacobian_NP * num_seeds[:, None]
        response_PN = np.linalg.pinv(weighted.T @ jacobian_NP) @ weighted.T
        influences.append(_gradient(free, both, ln_m, which) @ response_PN)
        residuals.append(np.log(arm.loss) - np.log(form.predict(arm.parameters, arm.inputs)))
    dof = len(num_seeds) - len(free)
    stacked = np.stack(residuals) * np.sqrt(num_seeds)
    scatter_22 = stacked @ stacked.T / dof
    p, q = influences
    share = 1 / num_seeds
    variance_of = (
        scatter_22[0, 0] * (p * p * share).sum()
        + 2 * scatter_22[0, 1] * (p * q * share).sum()
        + scatter_22[1, 1] * (q * q * share).sum()
    )
    return float(variance_of), float(dof)


def _log_jacobian(form: Form, arm: FittedArm, free: Sequence[str]) -> Floats:
    """d ln L / d free parameter, N x P, by central differences."""
    columns = []
    for name in free:
        step = 1e-6 * max(abs(arm.parameters[name]), 1e-9)
        up, down = (
            np.log(form.predict({**arm.parameters, name: arm.parameters[name] + sign * step}, arm.inputs))
            for sign in (1, -1)
        )
        columns.append((up - down) / (2 * step))
    return np.stack(columns, axis=-1)


def _gradient(
    free: Sequence[str], both: tuple[dict[str, float], dict[str, float]], ln_m: LnM, which: int
) -> Floats:
    """d ln m / d free parameter of the baseline's (0) or the variant's (1) law."""
    values = []
    for name in free:
        sides = []
        step = 1e-6 * max(abs(both[which][name]), 1e-9)
        for sign in (1, -1):
            pair = [dict(both[0]), dict(both[1])]
            pair[which][name] += sign * step
            sides.append(ln_m(pair[0], pair[1]))
        values.append((sides[0] - sides[1]) / (2 * step))
    return np.array(values)
