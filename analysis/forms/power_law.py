"""loss = A C^(-alpha): the power law without an irreducible loss."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from analysis.forms.base import FORMS, Array
from analysis.forms.power_terms import PowerTerms


@FORMS.register("power_law")
class PowerLaw(PowerTerms):
    """loss = A C^(-alpha), the form of "Attention Residuals" (arXiv 2603.15031), section 5."""

    name = "power_law"
    parameters = ("A", "alpha")
    variables = ("compute",)
    exponents = ("alpha",)
    terms = (("A", "alpha"),)
    offset = None
    planted = ({"A": 1.89 * 8.64e19**0.057, "alpha": 0.057}, {"A": 40.0, "alpha": 0.3})

    def inverse(self, parameters: Mapping[str, float], loss: npt.ArrayLike) -> Array:
        """Compute at which the law reaches ``loss``: (A / loss)^(1/alpha); NaN for a loss below 0."""
        loss = np.asarray(loss, dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.exp((np.log(parameters["A"]) - np.log(loss)) / parameters["alpha"]))
