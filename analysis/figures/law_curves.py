"""Fitted laws read back from fits/ and evaluated: curves with their bands. Nothing is fitted here."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.fit_result import FitResult, read_fit_result
from analysis.forms.base import form_named
from analysis.study import FITS_FOLDER, Study, fit_name

Floats = NDArray[np.float64]

BAND_LEVEL = 0.95
_RELATIVE_STEP = 1e-6


def read_fit(study: Study, form: str, variant: str) -> FitResult | None:
    """The fit of ``form`` to the arm ``variant``, or None where the study has none."""
    path = study.folder / FITS_FOLDER / f"{fit_name(form, variant)}.json"
    return read_fit_result(path) if path.exists() else None


def curve_with_band(fit: FitResult, compute: Floats) -> tuple[Floats, Floats, Floats]:
    """Loss at ``compute`` and the ends of its pointwise 95 % band.

    The variance of ln loss is g' V g, V the covariance of the parameters and g the derivative of ln loss by
    them (central differences), Student's t with the fit's degrees of freedom. NaN bands without covariance.
    """
    form = form_named(fit.form)
    names = fit.parameter_names
    loss = form.predict(fit.parameters, {"compute": compute})
    dof = fit.diagnostics.get("dof", 0.0)
    if fit.covariance is None or dof <= 0:
        blank = np.full_like(loss, np.nan)
        return loss, blank, blank
    gradient = np.empty((len(names), len(loss)))
    for i, name in enumerate(names):
        step = _RELATIVE_STEP * max(abs(fit.parameters[name]), 1e-12)
        ends = [
            np.log(
                form.predict(
                    fit.parameters | {name: fit.parameters[name] + sign * step}, {"compute": compute}
                )
            )
            for sign in (1, -1)
        ]
        gradient[i] = (ends[0] - ends[1]) / (2 * step)
    variance = np.einsum("in,ij,jn->n", gradient, np.array(fit.covariance), gradient)
    half = float(stats.t.ppf(0.5 + BAND_LEVEL / 2, dof)) * np.sqrt(np.maximum(variance, 0.0))
    return loss, loss * np.exp(-half), loss * np.exp(half)
