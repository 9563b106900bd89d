"""Table 4 and Figures 6 and 7 of "Attention Residuals" (arXiv 2603.15031v1). One run per cell.

Table 4 and Figure 6: the 436M row of Table 2 (16 Transformer blocks), the same hyper-parameters and compute
for all; confirmed by two transcriptions. Figure 7: about 6.5e19 FLOPs and 2.3e8 active parameters per cell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Ablation:
    """One row of Table 4: what was trained, and its validation loss."""

    label: str
    family: str
    loss: float


TABLE_4: tuple[Ablation, ...] = (
    Ablation("PreNorm", "baseline", 1.766),
    Ablation("DenseFormer", "other", 1.767),
    Ablation("mHC", "other", 1.747),
    Ablation("Full AttnRes", "full", 1.737),
    Ablation("Full, input-dependent query", "full", 1.731),
    Ablation("Full, static mixing", "full", 1.749),
    Ablation("Full, sigmoid", "full", 1.741),
    Ablation("Full, keys not normalised", "full", 1.743),
    Ablation("Full, window of 8 + embedding", "full", 1.764),
    Ablation("Block AttnRes, S = 4", "block", 1.746),
    Ablation("Block, 16 heads", "block", 1.752),
    Ablation("Block, keys not normalised", "block", 1.750),
)

# Figure 6: block size in sublayers -> validation loss; dashed lines: baseline, and Full (block size 1).
BLOCK_SIZE_LOSS: Mapping[int, float] = MappingProxyType({32: 1.757, 16: 1.753, 8: 1.748, 4: 1.746, 2: 1.746})
BLOCK_SIZE_BASELINE, BLOCK_SIZE_FULL = 1.766, 1.737

# Figure 7: rows heads / depth, columns width / depth (depth in Transformer blocks).
WIDTH_OVER_DEPTH = (15, 30, 45, 60, 75)
HEADS_OVER_DEPTH = (0.7, 0.6, 0.5, 0.4, 0.3)
ARCHITECTURE_COMPUTE = 6.5e19
ARCHITECTURE_BASELINE = (
    (2.017, 1.909, 1.875, 1.851, 1.858),
    (1.990, 1.902, 1.862, 1.852, 1.862),
    (1.973, 1.883, 1.859, 1.849, 1.854),
    (1.952, 1.868, 1.850, 1.849, 1.857),
    (1.926, 1.857, 1.851, 1.847, 1.858),
)
# Whether this panel is Full or Block is not stated.
ARCHITECTURE_ATTNRES = (
    (1.954, 1.890, 1.843, 1.828, 1.824),
    (1.931, 1.863, 1.830, 1.817, 1.818),
    (1.917, 1.841, 1.819, 1.812, 1.817),
    (1.893, 1.823, 1.815, 1.813, 1.813),
    (1.877, 1.816, 1.802, 1.806, 1.820),
)
