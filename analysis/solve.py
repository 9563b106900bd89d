"""One solver for every form: variable-projection starts, damped Newton on ln loss, a typed result."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from analysis.fit_input import Data, check_options, checked, checked_starts, missing_information
from analysis.fit_result import FitResult, FitStatus
from analysis.forms.base import Array, Form, Units
from analysis.judgement import Draft
from analysis.newton import Minima, minimise
from analysis.objective import Problem, influence
from analysis.residuals import LOG, Residual

# Exponents of published laws lie between 0.03 and 1.2; the grid is wider on both sides.
GRID_1D = np.geomspace(0.005, 3.0, 40)
GRID_2D = np.geomspace(0.02, 2.0, 16)
# The lowest starts are followed, and as many spread over the rest: the share ending at the best is told.
FOLLOWED_BEST, FOLLOWED_SPREAD = 6, 6


def fit(
    form: Form,
    x: Mapping[str, npt.ArrayLike],
    loss: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    sigma: npt.ArrayLike | None = None,
    huber_delta: float | None = None,
    fixed: Mapping[str, float] | None = None,
    residual: Residual = LOG,
    group: str = "",
    spec_ids: Sequence[str] = (),
    exponent_starts: npt.ArrayLike | None = None,
) -> FitResult:
    """Minimise sum_n w_n rho((ln L_n - ln f(x_n)) / sigma_n) over the free parameters.

    Args:
        x: the form's variables, (N,) each, in any unit. loss: (N,), nats.
        weights: relative precision of the points (seeds averaged in each, say); their scale does not matter.
        sigma: standard deviation of ln loss per point. A larger sigma is a smaller say.
        huber_delta: residual (in sigma where given) beyond which rho is linear; None is least squares.
        fixed: parameters held at a value. residual: LOG, or LINEAR (loss - f) to redo published fits.
        group, spec_ids: carried into the result.
        exponent_starts: (S, number of exponents) replaces the grid of starts.

    Returns:
        A result; degenerate data give status not_identifiable, not an exception.

    Raises:
        FitInputError: an array is empty, not finite, not positive, of another length, or a name is unknown.
    """
    fixed = dict(fixed or {})
    data = checked(form, x, loss, weights=weights, sigma=sigma, spec_ids=spec_ids)
    check_options(form, huber_delta, fixed)
    exponents = exponent_grid(form) if exponent_starts is None else checked_starts(form, exponent_starts)
    draft = Draft(form, data, group, fixed, huber_delta, residual, len(exponents))
    if shortage := missing_information(form, data.x, data.weights, fixed):
        return draft.without_answer(FitStatus.NOT_IDENTIFIABLE, shortage)
    problem, units, fixed_P = pose(form, data, huber_delta, fixed, residual)
    minima = search(problem, data, units, fixed_P, exponents)
    return draft.judge(problem, units, minima)


def pose(
    form: Form, data: Data, huber_delta: float | None, fixed: Mapping[str, float], residual: Residual
) -> tuple[Problem, Units, Array]:
    """The problem in internal units, the units, and the fixed coordinates (P,), NaN where free."""
    lnx_VN, ln_loss_N = form.log_inputs(data.inputs), np.log(data.loss)
    units = Units(form.centre(lnx_VN, fixed), float(ln_loss_N.mean()))
    public_P = np.array([fixed.get(name, np.nan) for name in form.parameters])
    with np.errstate(divide="ignore"):
        fixed_P = form.to_internal(public_P[None], units)[0]
    problem = Problem(
        form,
        lnx_VN - units.centre[:, None],
        ln_loss_N - units.ln_scale,
        residual.unit(units.ln_scale) / data.sigma,
        np.isnan(fixed_P),
        huber_delta,
        residual,
    )
    return problem, units, fixed_P


def exponent_grid(form: Form) -> Array:
    """Default starts: all combinations of a geometric grid per exponent, (S, Q)."""
    axis = GRID_2D if len(form.exponents) > 1 else GRID_1D
    combinations = list(product(axis, repeat=len(form.exponents)))
    return np.array(combinations).reshape(len(combinations), len(form.exponents))


def search(problem: Problem, data: Data, units: Units, fixed_P: Array, exponents_SQ: Array) -> Minima:
    """Minima reached from the best starts and from as many spread over the rest, lowest first."""
    loss_N = data.loss * np.exp(-units.ln_scale)
    # Starts minimise squared relative residuals; a linear residual is a relative one times the loss.
    precision = data.weights * (problem.precision * problem.residual.slope(problem.log_loss)) ** 2
    lower, upper = problem.form.bounds()
    # A steep exponent over a huge range overflows: such starts rank last.
    with np.errstate(all="ignore"):
        starts = problem.form.starts(problem.z, loss_N, precision, fixed_P, exponents_SQ)
        starts = np.where(problem.free, np.clip(starts, lower, upper), starts)
        log_curve, _ = problem.form.log_curve(starts, problem.z)
        residual = problem.residual.of(problem.log_loss, log_curve) * problem.precision
        rho, _, _ = influence(residual, problem.delta)
    height = np.nan_to_num(rho @ data.weights, nan=np.inf, posinf=np.inf)
    order = np.argsort(height, kind="stable")
    spread = np.linspace(FOLLOWED_BEST, len(order) - 1, FOLLOWED_SPREAD).astype(int)
    followed = order[np.unique(np.r_[: min(FOLLOWED_BEST, len(order)), spread.clip(0, len(order) - 1)])]
    minima = minimise(problem, starts[followed], data.weights)
    return minima.take(np.lexsort((~minima.converged, minima.objective)))
