"""Figure 6: loss against the size of an AttnRes block."""

import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.figures.base import Figure
from analysis.figures.marks import arm_legend
from analysis.figures.style import COLUMN, PAPER, Palette, new_figure
from analysis.paper.figures.base import PAPER_FIGURES
from analysis.paper.numbers import Numbers
from analysis.published.attnres_ablations import BLOCK_SIZE_BASELINE, BLOCK_SIZE_FULL, BLOCK_SIZE_LOSS
from analysis.published.attnres_scaling import BASELINE, BLOCK, FULL


@PAPER_FIGURES.register("figure_6")
class Figure6(Figure[Numbers]):
    """Block sizes 32 to 2, with the baseline and Full (block size 1) as lines."""

    title = "Figure 6 again: block size"
    needs = ()
    rank = 3

    def table(self, source: Numbers) -> pd.DataFrame:  # noqa: ARG002 (facts alone)
        """Rows: arm, block size in sublayers (empty for the baseline), loss."""
        rows = [
            {"variant": BLOCK, "block_size": size, "loss": loss} for size, loss in BLOCK_SIZE_LOSS.items()
        ]
        rows += [
            {"variant": FULL, "block_size": 1, "loss": BLOCK_SIZE_FULL},
            {"variant": BASELINE, "block_size": None, "loss": BLOCK_SIZE_BASELINE},
        ]
        return pd.DataFrame(rows)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """Equal spacing, as in the paper."""
        figure = new_figure(COLUMN, 2.2)
        axes = figure.subplots()
        own = table[table["variant"] == BLOCK]
        style = palette[BLOCK]
        axes.plot(
            range(len(own)), own["loss"], color=style.colour, marker=style.marker, linestyle=style.dash,
            markeredgecolor=PAPER, markeredgewidth=0.4,
        )  # fmt: skip
        for arm in (BASELINE, FULL):
            look = palette[arm]
            axes.axhline(
                table.loc[table["variant"] == arm, "loss"].iloc[0], color=look.colour, linestyle=look.dash
            )
        axes.set_xticks(range(len(own)), [f"{size:g}" for size in own["block_size"]])
        axes.set_xlabel("block size S (sublayers)")
        axes.set_ylabel("validation loss (nats/token)")
        arm_legend(figure, palette, (BASELINE, BLOCK, FULL))
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """The steps between neighbours."""
        own = table[table["variant"] == BLOCK].set_index("block_size")["loss"]
        full = table.loc[table["variant"] == FULL, "loss"].iloc[0]
        return (
            "436M model, one run a point. From S = 2 to Full (S = 1) the loss falls by "
            f"{own[2] - full:.3f}, from S = 16 to S = 2 by {own[16] - own[2]:.3f}."
        )
