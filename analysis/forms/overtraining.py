"""loss = E + (a M^eta + b M^(-eta)) C^(-eta): the law in compute and tokens per parameter."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from analysis.forms.base import FORMS, Array
from analysis.forms.power_terms import PowerTerms


@FORMS.register("overtraining")
class Overtraining(PowerTerms):
    """loss = E + (a M^eta + b M^(-eta)) C^(-eta), M = tokens / parameters (Gadre et al., arXiv 2403.08540).

    With C = 6 N D the terms are powers of N = (C / 6M)^(1/2) and D = (C M / 6)^(1/2), one exponent 2 eta.
    """

    name = "overtraining"
    parameters = ("E", "a", "b", "eta")
    variables = ("compute", "tokens_per_param")
    exponents = ("eta",)
    terms = (("a", "eta"), ("b", "eta"))
    offset = "E"
    planted = (
        {"E": 1.837, "a": 212.0, "b": 367.0, "eta": 0.1364},
        {"E": 0.9, "a": 40.0, "b": 15.0, "eta": 0.09},
    )

    def log_inputs(self, x: Mapping[str, npt.ArrayLike]) -> Array:
        """ln(C / M) and ln(C M)."""
        ln_compute, ln_ratio = super().log_inputs(x)
        return np.stack([ln_compute - ln_ratio, ln_compute + ln_ratio])

    def needs_spread(self, variable: str, free: list[str]) -> bool:  # noqa: ARG002
        """Compute separates E from the rest, tokens per parameter a from b."""
        return len(free) > 1

    def inverse(
        self, parameters: Mapping[str, float], loss: npt.ArrayLike, tokens_per_param: float = 20.0
    ) -> Array:
        """Compute at which the law reaches ``loss`` at fixed tokens per parameter; NaN at or below E."""
        eta = parameters["eta"]
        factor = parameters["a"] * tokens_per_param**eta + parameters["b"] * tokens_per_param**-eta
        excess = np.asarray(loss, dtype=float) - parameters["E"]
        with np.errstate(invalid="ignore", divide="ignore"):
            compute = np.exp((np.log(factor) - np.log(excess)) / eta)
        return np.asarray(np.where(excess > 0, compute, np.nan))
