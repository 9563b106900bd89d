"""loss = E + A N^(-alpha) + B D^(-beta): the parametric surface, its compute-optimal frontier and inverse."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.forms.base import FORMS, Array
from analysis.forms.power_terms import PowerTerms


@dataclass(frozen=True)
class Frontier:
    """Compute-optimal allocation at compute C = flops_per_param_token x N x D, arrays like C."""

    params: Array
    tokens: Array
    loss: Array


@FORMS.register("chinchilla")
class Chinchilla(PowerTerms):
    """loss = E + A N^(-alpha) + B D^(-beta) (Hoffmann et al., arXiv 2203.15556, approach 3)."""

    name = "chinchilla"
    parameters = ("E", "A", "alpha", "B", "beta")
    variables = ("params", "tokens")
    exponents = ("alpha", "beta")
    terms = (("A", "alpha"), ("B", "beta"))
    offset = "E"
    planted = (
        {"E": 1.8172, "A": 477.8, "alpha": 0.3473, "B": 2143.4, "beta": 0.3672},
        {"E": 0.5, "A": 20.0, "alpha": 0.15, "B": 900.0, "beta": 0.3},
    )

    def frontier(
        self, parameters: Mapping[str, float], compute: npt.ArrayLike, flops_per_param_token: float = 6.0
    ) -> Frontier:
        """N* = G (C/k)^(beta/(alpha+beta)), D* = (C/k)/N*, G = (alpha A / (beta B))^(1/(alpha+beta)).

        Args:
            compute: FLOPs. flops_per_param_token: k of C = k N D, 6 by convention.
        """
        alpha, beta = parameters["alpha"], parameters["beta"]
        ln_product = np.log(np.asarray(compute, dtype=float) / flops_per_param_token)
        ln_g = np.log(alpha * parameters["A"] / (beta * parameters["B"])) / (alpha + beta)
        ln_params = ln_g + beta / (alpha + beta) * ln_product
        params, tokens = np.exp(ln_params), np.exp(ln_product - ln_params)
        return Frontier(params, tokens, self.predict(parameters, {"params": params, "tokens": tokens}))

    def inverse_frontier(
        self, parameters: Mapping[str, float], loss: npt.ArrayLike, flops_per_param_token: float = 6.0
    ) -> Array:
        """Least compute that reaches ``loss`` along the frontier; NaN at or below E.

        On the frontier loss - E = K C^(-gamma), gamma = alpha beta / (alpha + beta), K = (loss - E) at C = 1.
        """
        alpha, beta = parameters["alpha"], parameters["beta"]
        gamma = alpha * beta / (alpha + beta)
        at_one = self.frontier({**parameters, "E": 0.0}, 1.0, flops_per_param_token).loss
        excess = np.asarray(loss, dtype=float) - parameters["E"]
        with np.errstate(invalid="ignore", divide="ignore"):
            compute = np.exp((np.log(at_one) - np.log(excess)) / gamma)
        return np.asarray(np.where(excess > 0, compute, np.nan))
