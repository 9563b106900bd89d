"""Two minutes through every stage: for CI and for a first look. Too small to tell anything."""

from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from sweeps.grid import ADDITIVE, GRIDS, Grid, Rung, pairs

ARMS = (
    ADDITIVE,
    StreamSpec(name="block_attnres", options={"num_blocks": 2}),
    StreamSpec(name="full_attnres"),
)


@GRIDS.register("smoke")
def smoke() -> Grid:
    """Four tiny sizes of three arms on synthetic text of known entropy."""
    rungs = [
        Rung(
            shape=ModelShape(
                depth=depth, width=width, num_heads=2, mlp_width=2 * width, vocab_size=64, seq_len=64
            ),
            tokens_per_param=8,
        )
        for depth, width in ((2, 12), (2, 16), (3, 20), (3, 28))
    ]
    cells = [cell for rung in rungs for cell in pairs(rung, arms=ARMS, dataset="synthetic", recipe="smoke")]
    return Grid("smoke", "Every stage once, on synthetic text; no claim.", ARMS, tuple(cells))
