"""The demo's ladder at three budgets a size, from one trunk a size and arm: for three fifths of the FLOPs.

Branches of one trunk share its noise: the analysis counts a size as one, so that this buys budgets, not
independent runs (docs/decisions/2026-11-30-trunks.md).
"""

from sweeps.grid import GRIDS, Grid
from sweeps.grids.demo import ARMS, SIZES, demo_shape
from sweeps.trunks import BranchedRung, branched_pairs

TOKENS_PER_PARAM = (5, 10, 20)


@GRIDS.register("demo_trunks")
def demo_trunks() -> Grid:
    """Five sizes, three arms, three budgets a factor of two apart."""
    cells = [
        cell
        for size in SIZES
        for cell in branched_pairs(
            BranchedRung(demo_shape(*size), TOKENS_PER_PARAM),
            arms=ARMS,
            dataset="speeches",
            recipe="bytes_trunks",
        )
    ]
    return Grid("demo_trunks", "The demo's question with one trunk for three budgets.", ARMS, tuple(cells))
