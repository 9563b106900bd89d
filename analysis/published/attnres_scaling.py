"""Scaling results of "Attention Residuals" (Kimi Team, arXiv 2603.15031v1): Table 2, Figure 4, the claim.

Table 2 is confirmed by two independent transcriptions; the plotted coefficients and compute values were read
from the coordinates in the LaTeX source of Figure 4 (a single source). One run per cell; no seeds stated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

FLOPS_PER_PFLOPS_DAY = 1e15 * 86400.0

BASELINE, BLOCK, FULL, MHC = "baseline", "block_attnres", "full_attnres", "mhc_lite"
VARIANTS = (BLOCK, FULL, MHC)


@dataclass(frozen=True)
class Cell:
    """One size of Table 2.

    Fields:
        params_active: activated parameters without embeddings. mlp_width: of one expert.
        batch_sequences: sequences of ``seq_len`` tokens a step. loss: arm -> validation loss, nats a token.
    """

    params_active: float
    tokens: float
    depth: int
    num_heads: int
    width: int
    mlp_width: int
    lr: float
    batch_sequences: int
    loss: Mapping[str, float]
    seq_len: int = 8192

    @property
    def compute_6nd(self) -> float:
        """6 x active parameters x tokens, FLOPs. The paper's own FLOP formula is not published."""
        return 6.0 * self.params_active * self.tokens


def _cell(
    params: float,
    tokens: float,
    depth: int,
    width: int,
    mlp_width: int,
    lr: float,
    batch: int,
    losses: tuple[float, float, float, float],
) -> Cell:
    loss = MappingProxyType(dict(zip((BASELINE, *VARIANTS), losses, strict=True)))
    return Cell(params, tokens, depth, depth, width, mlp_width, lr, batch, loss)


# Heads equal depth in every row.
TABLE_2: tuple[Cell, ...] = (
    _cell(194e6, 38.7e9, 12, 896, 400, 2.99e-3, 192, (1.931, 1.909, 1.899, 1.906)),
    _cell(241e6, 45.4e9, 13, 960, 432, 2.80e-3, 256, (1.895, 1.875, 1.874, 1.869)),
    _cell(296e6, 62.1e9, 14, 1024, 464, 2.50e-3, 320, (1.829, 1.809, 1.804, 1.807)),
    _cell(436e6, 87.9e9, 16, 1168, 528, 2.20e-3, 384, (1.766, 1.746, 1.737, 1.747)),
    _cell(528e6, 119.0e9, 17, 1264, 560, 2.02e-3, 432, (1.719, 1.693, 1.692, 1.694)),
)


@dataclass(frozen=True)
class Curve:
    """loss = A C^(-alpha) with C in PFLOP/s-days."""

    A: float
    alpha: float


# As printed in the text, rounded; and as drawn in Figure 4. mHC-lite has no curve in the paper.
PRINTED_CURVES: Mapping[str, Curve] = MappingProxyType(
    {BASELINE: Curve(1.891, 0.057), BLOCK: Curve(1.870, 0.058), FULL: Curve(1.865, 0.057)}
)
PLOTTED_CURVES: Mapping[str, Curve] = MappingProxyType(
    {BASELINE: Curve(1.8908, 0.0565), BLOCK: Curve(1.8699, 0.0578), FULL: Curve(1.8645, 0.0572)}
)
# x of the five stars of Figure 4, PFLOP/s-days, the same for every arm.
PLOTTED_COMPUTE_PFLOPS_DAYS = (0.6916, 1.0405, 1.6937, 3.3528, 5.5974)


@dataclass(frozen=True)
class Claim:
    """The compute multiplier as stated: where, the two losses read off the fitted curves, the value."""

    compute_pflops_days: float
    loss_baseline: float
    loss_variant: float
    compute_multiplier: float


CLAIM = Claim(5.6, 1.714, 1.692, 1.25)
