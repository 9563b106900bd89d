"""The learning-rate sweep behind the demo's recipe: four rates, two sizes, every arm."""

from sweeps.grid import GRIDS, Grid, Rung, pairs
from sweeps.grids.demo import ARMS, SIZES, TOKENS_PER_PARAM, demo_shape

RATES = (4e-3, 8e-3, 16e-3, 32e-3)
RATE_SIZES = (SIZES[0], SIZES[2])


@GRIDS.register("demo_rates")
def demo_rates() -> Grid:
    """A factor of two between rates; the optimum must lie inside them, for every arm."""
    cells = [
        cell
        for size in RATE_SIZES
        for lr in RATES
        for cell in pairs(
            Rung(demo_shape(*size), TOKENS_PER_PARAM, lr=lr),
            arms=ARMS,
            dataset="speeches",
            recipe="bytes_ladder",
            role="rate",
        )
    ]
    return Grid("demo_rates", "Which learning rate suits each arm at the demo's sizes?", ARMS, tuple(cells))
