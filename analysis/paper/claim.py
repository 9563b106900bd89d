"""The paper's own number: what follows from its curves, and what its printed digits leave open."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from analysis.fit_result import FitResult
from analysis.published.attnres_scaling import (
    BASELINE,
    BLOCK,
    CLAIM,
    FULL,
    PLOTTED_CURVES,
    PRINTED_CURVES,
    Curve,
)

HALF_DIGIT = 0.0005
"""Coefficients and exponents are printed to three decimals."""

ARROW_LOSS, ARROW_FROM, ARROW_TO = 1.80, 1.93, 2.39
"""The arrow of Figure 4: loss, and its ends in PFLOP/s-days (coordinates of the LaTeX source)."""


def multiplier_at(base: Curve, other: Curve, compute: float) -> float:
    """Compute the baseline's curve needs for the other's loss at ``compute``, over ``compute``."""
    loss = other.A * compute**-other.alpha
    return float((base.A / loss) ** (1 / base.alpha) / compute)


def curve_rows(fitted: Mapping[str, FitResult]) -> Iterator[dict[str, Any]]:
    """Printed, drawn and re-fitted curves: losses and multiplier at several computes."""
    refitted = {arm: Curve(law.parameters["A"], law.parameters["alpha"]) for arm, law in fitted.items()}
    for source, curves in (("printed", PRINTED_CURVES), ("drawn", PLOTTED_CURVES), ("re-fitted", refitted)):
        for variant in (BLOCK, FULL):
            for compute in (0.7, 1.0, 2.0, CLAIM.compute_pflops_days):
                base, other = curves[BASELINE], curves[variant]
                yield {
                    "curves": source,
                    "variant": variant,
                    "compute_pflops_days": compute,
                    "A_baseline": base.A,
                    "alpha_baseline": base.alpha,
                    "A_variant": other.A,
                    "alpha_variant": other.alpha,
                    "loss_baseline": base.A * compute**-base.alpha,
                    "loss_variant": other.A * compute**-other.alpha,
                    "compute_multiplier": multiplier_at(base, other, compute),
                }


def rounding_rows() -> Iterator[dict[str, Any]]:
    """Smallest and largest multiplier at the claim's compute that its printed digits allow."""
    at = CLAIM.compute_pflops_days
    steps = list(itertools.product((-HALF_DIGIT, HALF_DIGIT), repeat=4))
    base, other = PRINTED_CURVES[BASELINE], PRINTED_CURVES[BLOCK]
    curves = [
        multiplier_at(Curve(base.A + a, base.alpha + b), Curve(other.A + c, other.alpha + d), at)
        for a, b, c, d in steps
    ]
    yield _range("coefficients of both curves, three decimals", multiplier_at(base, other, at), curves)
    losses = [
        math.exp(math.log((CLAIM.loss_baseline + a) / (CLAIM.loss_variant + c)) / (base.alpha + b))
        for a, b, c, _ in steps
    ]
    central = math.exp(math.log(CLAIM.loss_baseline / CLAIM.loss_variant) / base.alpha)
    yield _range("the two losses and the baseline's exponent, three decimals", central, losses)


def _range(what: str, value: float, values: list[float]) -> dict[str, Any]:
    return {"rounded": what, "compute_multiplier": value, "lo": min(values), "hi": max(values)}
