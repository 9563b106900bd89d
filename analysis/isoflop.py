"""Compute-optimal size from slices of equal budget: a parabola each, then n_opt = G C^a through the optima.

Slices whose optimum is not inside the sizes that were run are left out and counted; warnings of the others
are carried along, since parabolas through off-centre or asymmetric slices are wrong even without noise.
"""

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from analysis.fit_result import FitInputError, FitResult, FitStatus
from analysis.forms.isoflop import IsoFlop
from analysis.solve import fit


class SizeLaw(BaseModel):
    """n_opt = coefficient x C^exponent.

    Fields:
        slices: the parabolas, in order of ``budgets``, those without an optimum included.
        used: how many of them have one. standard_error: from the scatter of the optima; None below three.
        warnings: one line per slice left out or in doubt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    exponent: float | None
    coefficient: float | None
    standard_error: float | None
    budgets: list[float]
    slices: list[FitResult]
    used: int
    status: FitStatus
    warnings: list[str]


def fit_slices(budget: npt.ArrayLike, params: npt.ArrayLike, loss: npt.ArrayLike) -> SizeLaw:
    """Fit one parabola per distinct ``budget`` (N,), then the power law of the optima.

    Raises:
        FitInputError: arrays of different lengths, or values that are not finite and positive.
    """
    budgets = np.asarray(budget, dtype=float)
    sizes, losses = np.asarray(params, dtype=float), np.asarray(loss, dtype=float)
    if not (budgets.shape == sizes.shape == losses.shape and budgets.ndim == 1):
        raise FitInputError("budget, params and loss must have one value per point")
    if not (np.isfinite(budgets).all() and (budgets > 0).all()):
        raise FitInputError("budget holds a value that is not positive and finite")
    distinct = np.unique(budgets)
    slices = [
        fit(
            IsoFlop(),
            {"params": sizes[budgets == value]},
            losses[budgets == value],
            group=f"budget {value:.4g}",
        )
        for value in distinct
    ]
    warnings = [f"{one.group}: {one.message}" for one in slices if one.message]
    usable = np.array([one.usable for one in slices])
    optima = np.array([one.parameters["n_opt"] for one in slices if one.usable])
    exponent = coefficient = error = None
    status = FitStatus.NOT_IDENTIFIABLE
    if usable.sum() >= 2:
        exponent, coefficient, error = _line(np.log(distinct[usable]), np.log(optima))
        status = FitStatus.CONVERGED
    else:
        warnings.append(
            f"{usable.sum()} of {len(slices)} slices have an optimum: 2 are needed for an exponent"
        )
    return SizeLaw(
        exponent=exponent,
        coefficient=coefficient,
        standard_error=error,
        budgets=distinct.tolist(),
        slices=slices,
        used=int(usable.sum()),
        status=status,
        warnings=warnings,
    )


def _line(ln_compute: np.ndarray, ln_size: np.ndarray) -> tuple[float, float, float | None]:
    """Least-squares exponent, coefficient, standard error of the exponent."""
    centred = ln_compute - ln_compute.mean()
    exponent = float(centred @ ln_size / (centred @ centred))
    coefficient = float(np.exp(ln_size.mean() - exponent * ln_compute.mean()))
    if len(ln_size) < 3:
        return exponent, coefficient, None
    scatter = ln_size - ln_size.mean() - exponent * centred
    variance = scatter @ scatter / (len(ln_size) - 2)
    return exponent, coefficient, float(np.sqrt(variance / (centred @ centred)))
