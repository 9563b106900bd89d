"""Figure 5 of "Attention Residuals" (arXiv 2603.15031v1): training of a 48B model, baseline and Block.

Values from the coordinates in the LaTeX source (a single source; the shapes are confirmed). What "output
magnitude" and "gradient magnitude" are is not defined there: the curves can be compared in shape only.
"""

from dataclasses import dataclass

TOKENS_PER_STEP = 2**23
# Transformer blocks in one AttnRes block of this model.
TRANSFORMER_BLOCKS_PER_BLOCK = 3


@dataclass(frozen=True)
class LossPoint:
    """Validation loss of both arms after ``step`` optimiser steps."""

    step: int
    baseline: float
    block_attnres: float


VALIDATION_LOSS: tuple[LossPoint, ...] = (
    LossPoint(10_000, 1.4827, 1.4736),
    LossPoint(20_000, 1.4257, 1.4160),
    LossPoint(40_000, 1.3727, 1.3618),
    LossPoint(60_000, 1.3512, 1.3376),
    LossPoint(80_000, 1.3367, 1.3213),
    LossPoint(100_000, 1.2831, 1.2665),
    LossPoint(119_209, 1.1734, 1.1551),
)

# Per Transformer block, first to last, at the end of training.
OUTPUT_MAGNITUDE_BASELINE = (
    0.04, 0.06, 0.10, 0.14, 0.20, 0.59, 0.63, 0.68, 0.71, 0.76, 0.81, 0.89, 0.98, 1.07,
    1.23, 1.43, 1.66, 1.91, 2.29, 2.60, 3.12, 3.51, 5.56, 6.20, 7.10, 10.47, 12.15,
)  # fmt: skip
OUTPUT_MAGNITUDE_BLOCK = (
    0.07, 0.34, 0.75, 0.35, 0.67, 1.89, 0.38, 0.69, 1.30, 0.30, 0.66, 1.48, 0.21, 0.42,
    0.71, 0.28, 0.59, 1.48, 0.46, 0.75, 1.41, 0.66, 1.23, 1.50, 0.64, 1.16, 1.91,
)  # fmt: skip

GRADIENT_UNIT = 1e-5
GRADIENT_MAGNITUDE_BASELINE = (
    2.466, 1.838, 1.396, 1.175, 0.940, 0.775, 0.682, 0.561, 0.473, 0.421, 0.373, 0.316, 0.279, 0.249,
    0.223, 0.189, 0.164, 0.146, 0.134, 0.115, 0.101, 0.090, 0.082, 0.074, 0.068, 0.070, 0.084,
)  # fmt: skip
GRADIENT_MAGNITUDE_BLOCK = (
    0.718, 0.316, 0.243, 0.214, 0.156, 0.135, 0.180, 0.140, 0.112, 0.235, 0.144, 0.087, 0.383, 0.223,
    0.162, 0.294, 0.163, 0.096, 0.245, 0.171, 0.122, 0.197, 0.169, 0.155, 0.226, 0.224, 0.286,
)  # fmt: skip
