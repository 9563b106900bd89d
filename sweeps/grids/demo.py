"""The demo: a ladder of six sizes on real text that a two-core machine trains in a quarter of an hour.

Numbers behind it: docs/decisions/ (learning rates and tokens a parameter at these sizes).
"""

from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from sweeps.grid import ADDITIVE, GRIDS, Grid, Rung, pairs

ARMS = (
    ADDITIVE,
    StreamSpec(name="block_attnres", options={"num_blocks": 4}),
    StreamSpec(name="full_attnres"),
)
TOKENS_PER_PARAM = 20
SIZES = ((3, 24, 2), (4, 28, 2), (5, 32, 2), (6, 40, 2), (7, 48, 3))
"""(depth, width, num_heads): seven or eight channels a Transformer block, so that sizes are of one family."""


def demo_shape(depth: int, width: int, num_heads: int) -> ModelShape:
    """Byte model of the demo family: SwiGLU of 8/3 the width, 128 bytes of context."""
    return ModelShape(
        depth=depth,
        width=width,
        num_heads=num_heads,
        mlp_width=8 * round(width / 3),
        vocab_size=256,
        seq_len=128,
    )


@GRIDS.register("demo")
def demo() -> Grid:
    """Five sizes, three arms, two seeds at the two smallest."""
    cells = []
    for index, size in enumerate(SIZES):
        rung = Rung(demo_shape(*size), TOKENS_PER_PARAM, seeds=(0, 1) if index < 2 else (0,))
        cells += pairs(rung, arms=ARMS, dataset="speeches", recipe="bytes_ladder")
    return Grid(
        "demo",
        "Does depth mixing save compute below half a million parameters, on the bytes of speeches?",
        ARMS,
        tuple(cells),
    )
