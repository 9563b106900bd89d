"""Table 1 and the overheads of "Attention Residuals" (arXiv 2603.15031v1): input and output of the residual.

Units: elements of width d read or written, per token and sublayer; L sublayers in N blocks of S = L / N, m
streams for mHC. Typical: L = 128, N = 8, S = 16, m = 4. Overheads are stated as upper bounds without a table.
"""

from collections.abc import Mapping
from types import MappingProxyType

# Total in units of d, as printed for the typical case.
TYPICAL_TOTAL: Mapping[str, float] = MappingProxyType(
    {"standard": 3.0, "mhc": 34.0, "full_two_phase": 24.0, "block_two_phase": 5.5}
)
TRAINING_OVERHEAD_BELOW, INFERENCE_OVERHEAD_BELOW = 0.04, 0.02


def standard_io() -> float:
    """3: read the stream and the sublayer's output, write the sum."""
    return 3.0


def mhc_io(streams: int) -> float:
    """8 m + 2, without the terms that do not grow with d (2 m^2 + 4 m elements)."""
    return 8.0 * streams + 2.0


def full_two_phase_io(num_blocks: int, block_size: int) -> float:
    """S + N."""
    return float(block_size + num_blocks)


def block_two_phase_io(num_blocks: int, block_size: int) -> float:
    """N / S + 5."""
    return num_blocks / block_size + 5.0
