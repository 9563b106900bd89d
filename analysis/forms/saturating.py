"""loss = E + A C^(-alpha): the power law above an irreducible loss."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from analysis.forms.base import FORMS, Array
from analysis.forms.power_terms import PowerTerms


@FORMS.register("saturating")
class Saturating(PowerTerms):
    """loss = E + A C^(-alpha), E >= 0."""

    name = "saturating"
    parameters = ("E", "A", "alpha")
    variables = ("compute",)
    exponents = ("alpha",)
    terms = (("A", "alpha"),)
    offset = "E"
    planted = ({"E": 1.6, "A": 95.2, "alpha": 0.0941}, {"E": 0.7, "A": 3.0e4, "alpha": 0.25})

    def inverse(self, parameters: Mapping[str, float], loss: npt.ArrayLike) -> Array:
        """Compute at which the law reaches ``loss``: (A / (loss - E))^(1/alpha); NaN at or below E."""
        excess = np.asarray(loss, dtype=float) - parameters["E"]
        with np.errstate(invalid="ignore", divide="ignore"):
            compute = np.exp((np.log(parameters["A"]) - np.log(excess)) / parameters["alpha"])
        return np.asarray(np.where(excess > 0, compute, np.nan))
