"""Batched bootstrap: one matrix of weights, all refits searched together, failures counted.

A resample is a row of counts, how often each unit was drawn; no array is resampled. The unit is whatever was
drawn independently: a run pair, a size, a point.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.fit_input import checked
from analysis.fit_result import BootstrapSummary, FitInputError, FitResult
from analysis.forms.base import Array, Form
from analysis.newton import minimise
from analysis.residuals import LOG, Residual, residual_named
from analysis.solve import fit, pose

# Above this share of failed refits no interval is given: the survivors are a selection, not a sample.
MAX_FAILED_SHARE = 0.05
FEWEST_REFITS = 20
# Refits stop within 1e-4 standard errors of their minimum.
REFIT_GAIN = 1e-10
PERCENTS = (2.5, 5.0, 16.0, 50.0, 84.0, 95.0, 97.5)


@dataclass(frozen=True)
class Refits:
    """Refits of one form: parameters (B, P) in the form's order, NaN where a refit failed; flags (B,).

    ``valid``: a determined minimum was found. ``at_bound``: it lies on a coefficient's bound (E = 0).
    """

    parameters: Array
    valid: npt.NDArray[np.bool_]
    at_bound: npt.NDArray[np.bool_]


def resampling_weights(units: Sequence[object] | npt.NDArray[np.generic], n: int, seed: int) -> Array:
    """(n, N) counts: in each row as many units as there are, drawn with replacement.

    Args:
        units: label per point (N,); points of one unit are drawn together.
    """
    if n < 1:
        raise FitInputError(f"{n} resamples asked for: at least 1 is needed")
    _, unit_of_point = np.unique(np.asarray(units), return_inverse=True)
    num_units = int(unit_of_point.max()) + 1
    draws = np.random.default_rng(seed).multinomial(num_units, np.full(num_units, 1 / num_units), size=n)
    counts: Array = draws[:, unit_of_point].astype(float)
    return counts


def refit(
    form: Form,
    x: Mapping[str, npt.ArrayLike],
    loss: npt.ArrayLike,
    weights_BN: npt.ArrayLike,
    start: FitResult,
    *,
    sigma: npt.ArrayLike | None = None,
) -> Refits:
    """Fit again under every row of weights, starting at ``start`` and with its delta and fixed parameters.

    Raises:
        FitInputError: as `analysis.solve.fit`; a weight is negative or not finite; ``start`` is unusable.
    """
    data = checked(form, x, loss, sigma=sigma)
    weights = np.asarray(weights_BN, dtype=float)
    if weights.ndim != 2 or weights.shape[1] != len(data.loss):
        raise FitInputError(f"weights have shape {weights.shape}: give (refits, {len(data.loss)})")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise FitInputError("weights hold a value that is negative or not finite")
    if not start.usable:
        raise FitInputError(f"cannot refit from a fit that is {start.status.value}: {start.message}")
    problem, units, _ = pose(form, data, start.huber_delta, start.fixed, residual_named(start.residual))
    informed_B = _distinct_inputs(data.x, weights) >= problem.free.sum()
    theta = np.full((len(weights), len(form.parameters)), np.nan)
    converged_B = np.zeros(len(weights), dtype=bool)
    if informed_B.any():
        first = form.to_internal(form.vector(start.parameters)[None], units)
        minima = minimise(
            problem, np.repeat(first, informed_B.sum(), axis=0), weights[informed_B], REFIT_GAIN
        )
        theta[informed_B], converged_B[informed_B] = minima.theta, minima.converged
    lower, upper = form.bounds()
    at_bound_BP = problem.free & ((theta <= lower) | (theta >= upper))
    exponents = [form.parameters.index(name) for name in form.exponents]
    with np.errstate(over="ignore"):
        parameters = form.to_public(theta, units)
    valid_B = converged_B & ~at_bound_BP[:, exponents].any(axis=1) & np.isfinite(parameters).all(axis=1)
    parameters[~valid_B] = np.nan
    return Refits(parameters, valid_B, at_bound_BP.any(axis=1) & valid_B)


def summarise(form: Form, refits: Refits, seed: int) -> BootstrapSummary:
    """Standard errors and percentiles of the valid refits; withdrawn when more than 5 % failed."""
    num_refits, num_failed = len(refits.valid), int((~refits.valid).sum())
    withdrawn = num_failed > MAX_FAILED_SHARE * num_refits or num_refits - num_failed < FEWEST_REFITS
    message = f"{num_failed} of {num_refits} refits failed" if num_failed else ""
    if withdrawn:
        message += (
            f"; interval withdrawn (at most {MAX_FAILED_SHARE:.0%} may fail, {FEWEST_REFITS} must remain)"
        )
    errors: dict[str, float] = {}
    percentiles: dict[str, dict[str, float]] = {}
    if not withdrawn:
        valid = refits.parameters[refits.valid]
        for column, name in zip(valid.T, form.parameters, strict=True):
            errors[name] = float(column.std(ddof=1))
            values = np.percentile(column, PERCENTS)
            percentiles[name] = {f"{p:g}": float(v) for p, v in zip(PERCENTS, values, strict=True)}
    return BootstrapSummary(
        n=num_refits,
        failed=num_failed,
        at_bound=int(refits.at_bound.sum()),
        standard_errors=errors,
        percentiles=percentiles,
        withdrawn=withdrawn,
        seed=seed,
        message=message.lstrip("; "),
    )


def fit_with_bootstrap(
    form: Form,
    x: Mapping[str, npt.ArrayLike],
    loss: npt.ArrayLike,
    *,
    n: int = 1000,
    seed: int = 0,
    units: Sequence[object] | None = None,
    weights: npt.ArrayLike | None = None,
    sigma: npt.ArrayLike | None = None,
    huber_delta: float | None = None,
    fixed: Mapping[str, float] | None = None,
    residual: Residual = LOG,
    group: str = "",
    spec_ids: Sequence[str] = (),
) -> FitResult:
    """`analysis.solve.fit` with a bootstrap summary; ``units`` label what is drawn together."""
    result = fit(
        form,
        x,
        loss,
        weights=weights,
        sigma=sigma,
        huber_delta=huber_delta,
        fixed=fixed,
        residual=residual,
        group=group,
        spec_ids=spec_ids,
    )
    if not result.usable:
        return result
    if units is not None and len(units) != result.n_points:
        raise FitInputError(f"units has {len(units)} labels, loss has {result.n_points}: give one per point")
    counts = resampling_weights(range(result.n_points) if units is None else units, n, seed)
    precision = 1.0 if weights is None else np.asarray(weights, dtype=float)
    refits = refit(form, x, loss, counts * precision, result, sigma=sigma)
    return result.model_copy(update={"bootstrap": summarise(form, refits, seed)})


def _distinct_inputs(x_VN: Array, weights_BN: Array) -> npt.NDArray[np.int64]:
    """Number of different inputs that carry weight, per row."""
    distinct, place_of_point = np.unique(x_VN, axis=1, return_inverse=True)
    present = np.zeros((len(weights_BN), distinct.shape[1]), dtype=bool)
    for place in range(distinct.shape[1]):
        present[:, place] = (weights_BN[:, place_of_point.ravel() == place] > 0).any(axis=1)
    counts: npt.NDArray[np.int64] = present.sum(axis=1)
    return counts
