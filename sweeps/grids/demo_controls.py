"""Two controls on the demo's ladder: what the analysis says where the answer is known.

The baseline against itself at other seeds must give an interval that contains 1; an arm that pays for Full
AttnRes and computes the baseline must give C_b / C_v on exact FLOPs and 1 at equal tokens. Baseline runs
are shared with the demo.
"""

from attnres.stream_spec import StreamSpec
from sweeps.grid import ADDITIVE, GRIDS, Grid, Rung, pairs
from sweeps.grids.demo import SIZES, TOKENS_PER_PARAM, demo_shape

ARMS = (ADDITIVE, StreamSpec(name="overhead_only"))


@GRIDS.register("demo_controls")
def demo_controls() -> Grid:
    """Five sizes, two seeds each, the baseline and the control that costs and changes nothing."""
    rungs = [Rung(demo_shape(*size), TOKENS_PER_PARAM, seeds=(0, 1)) for size in SIZES]
    cells = [
        cell for rung in rungs for cell in pairs(rung, arms=ARMS, dataset="speeches", recipe="bytes_ladder")
    ]
    return Grid("demo_controls", "Does the analysis find what is known?", ARMS, tuple(cells))
