"""The border of every fit: what is handed in is checked once, here, and trusted afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.fit_result import FitInputError
from analysis.forms.base import Array, Form

# Far beyond any unit of FLOPs, tokens or nats; inside, squares and powers stay within double precision.
SMALLEST, LARGEST = 1e-100, 1e100
# Below this ratio of singular values the logarithms of two inputs are one direction.
COLLINEAR = 1e-6


@dataclass(frozen=True)
class Data:
    """Checked input: x (V, N), loss (N,), relative precision weights (N,), sigma (N,; ones if unknown)."""

    x: Array
    loss: Array
    weights: Array
    sigma: Array
    sigma_known: bool
    spec_ids: tuple[str, ...]
    variables: tuple[str, ...]

    @property
    def inputs(self) -> dict[str, Array]:
        """Variable -> values (N,)."""
        return dict(zip(self.variables, self.x, strict=True))


def checked(
    form: Form,
    x: Mapping[str, npt.ArrayLike],
    loss: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    sigma: npt.ArrayLike | None = None,
    spec_ids: Sequence[str] = (),
) -> Data:
    """The input as arrays, every value finite and positive.

    Raises:
        FitInputError: naming the array, the first bad point and its value.
    """
    loss_N = _array("loss", loss)
    ids = tuple(spec_ids)
    if len(loss_N) == 0:
        raise FitInputError(f"no points to fit '{form.name}' to: loss is empty")
    if ids and len(ids) != len(loss_N):
        raise FitInputError(f"spec_ids has {len(ids)} entries, loss has {len(loss_N)}: give one per point")
    missing = [name for name in form.variables if name not in x]
    if missing:
        raise FitInputError(
            f"form '{form.name}' needs {', '.join(form.variables)}: missing {', '.join(missing)}"
        )
    arrays = {"loss": loss_N, **{name: _array(name, x[name]) for name in form.variables}}
    if weights is not None:
        arrays["weights"] = _array("weights", weights)
    if sigma is not None:
        arrays["sigma"] = _array("sigma", sigma)
    for name, values in arrays.items():
        _check_values(name, values, len(loss_N), ids, zero_allowed=name == "weights")
    if weights is not None and not arrays["weights"].any():
        raise FitInputError("weights are all zero: at least one point must count")
    ones = np.ones(len(loss_N))
    return Data(
        np.stack([arrays[name] for name in form.variables]),
        loss_N,
        arrays.get("weights", ones),
        arrays.get("sigma", ones),
        sigma is not None,
        ids,
        form.variables,
    )


def check_options(form: Form, huber_delta: float | None, fixed: Mapping[str, float]) -> None:
    """Refuse a delta that is not positive, an unknown or impossible fixed parameter (`FitInputError`)."""
    if huber_delta is not None and not (np.isfinite(huber_delta) and huber_delta > 0):
        raise FitInputError(
            f"huber_delta is {huber_delta}: give a positive number, or None for least squares"
        )
    unknown = [name for name in fixed if name not in form.parameters]
    if unknown:
        raise FitInputError(
            f"form '{form.name}' has no parameter {', '.join(unknown)}: it has {', '.join(form.parameters)}"
        )
    for name, value in fixed.items():
        if not np.isfinite(value):
            raise FitInputError(f"fixed {name} is {value}: give a finite number")
        if problem := form.impossible(name, value):
            raise FitInputError(f"fixed {name} is {value}: {problem}")


def missing_information(form: Form, x_VN: Array, weights_N: Array, fixed: Mapping[str, float]) -> str:
    """Why these inputs cannot determine the free parameters whatever the losses are; empty if they can."""
    used = x_VN[:, weights_N > 0]
    free = [name for name in form.parameters if name not in fixed]
    points, distinct = used.shape[1], np.unique(used, axis=1).shape[1]
    if points < len(free) + 1:
        return f"{points} points for {len(free)} free parameters ({', '.join(free)}): {len(free) + 1} needed"
    for name, values in zip(form.variables, used, strict=True):
        if form.needs_spread(name, free) and len(np.unique(values)) == 1:
            return f"all points are at one {name} ({values[0]:.4g}): nothing says how the loss depends on it"
    if distinct < len(free):
        return f"{distinct} distinct inputs for {len(free)} free parameters ({', '.join(free)})"
    if len(form.variables) > 1 and len(free) > 1:
        lnx = np.log(used) - np.log(used).mean(axis=1, keepdims=True)
        spread = np.linalg.svd(lnx / np.linalg.norm(lnx, axis=1, keepdims=True), compute_uv=False)
        if spread[-1] < COLLINEAR:
            return f"{' and '.join(form.variables)} vary together in every point: their terms look the same"
    return ""


def checked_starts(form: Form, exponent_starts: npt.ArrayLike) -> Array:
    """``exponent_starts`` as (S, Q), positive and finite (`FitInputError`)."""
    starts = np.atleast_2d(np.asarray(exponent_starts, dtype=float))
    if starts.shape[1] != len(form.exponents) or not len(starts):
        raise FitInputError(
            f"exponent_starts has shape {starts.shape}: give rows of ({', '.join(form.exponents)})"
        )
    if not (np.isfinite(starts).all() and (starts > 0).all()):
        raise FitInputError("exponent_starts holds a value that is not positive and finite")
    return starts


def _array(name: str, values: npt.ArrayLike) -> Array:
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise FitInputError(f"{name} does not hold numbers: {error}") from None
    if array.ndim != 1:
        raise FitInputError(f"{name} has {array.ndim} dimensions: give one value per point")
    return array


def _check_values(
    name: str, values: Array, num_points: int, ids: tuple[str, ...], *, zero_allowed: bool
) -> None:
    if len(values) != num_points:
        raise FitInputError(f"{name} has {len(values)} values, loss has {num_points}: give one per point")
    good = np.isfinite(values) & ((values >= 0) if zero_allowed else (values > 0))
    if not good.all():
        first = int(np.argmin(good))
        where = f"point {first}" + (f" (spec_id {ids[first]})" if ids else "")
        wanted = "not be negative" if zero_allowed else "be positive"
        raise FitInputError(f"{name} is {values[first]} at {where}: it must be finite and {wanted}")
    extreme = (values > LARGEST) | ((values < SMALLEST) & (values > 0))
    if extreme.any():
        first = int(np.argmax(extreme))
        raise FitInputError(
            f"{name} is {values[first]} at point {first}: give values between {SMALLEST:g} and {LARGEST:g}"
        )
