"""Parameters as printed: enough digits that the printed curve is the fitted curve."""

from itertools import product

import numpy as np

from analysis.fit_result import FitResult
from analysis.forms.base import Form
from analysis.residuals import LINEAR

FEWEST_DIGITS, MOST_DIGITS = 3, 17
GRID = 5
# The printed curve may leave the fitted one by this share of the residual standard deviation.
SHARE_OF_RESIDUAL = 0.1


def printed_parameters(form: Form, result: FitResult) -> dict[str, str]:
    """The fewest significant digits that move ln loss by less than a tenth of the residual sd.

    Checked on a grid over the data's range. E and A nearly cancel in a saturating law: four digits of each
    can move the curve by more than its noise.
    """
    names = list(form.variables)
    grid = np.array(
        list(product(*(np.geomspace(result.range[name][0], result.range[name][1], GRID) for name in names)))
    )
    x = {name: grid[:, i] for i, name in enumerate(names)}
    exact = np.log(form.predict(result.parameters, x))
    allowed = SHARE_OF_RESIDUAL * result.diagnostics.get("residual_sd", 0.0)
    if result.residual == LINEAR.name:  # its residuals are nats, not shares of the loss
        allowed /= result.range["loss"][1]
    for digits in range(FEWEST_DIGITS, MOST_DIGITS):
        printed = {name: f"{value:.{digits}g}" for name, value in result.parameters.items()}
        with np.errstate(invalid="ignore"):
            moved = np.log(form.predict({name: float(text) for name, text in printed.items()}, x)) - exact
        if (np.abs(moved) <= allowed).all():
            return printed
    return {name: f"{value:.{MOST_DIGITS}g}" for name, value in result.parameters.items()}
