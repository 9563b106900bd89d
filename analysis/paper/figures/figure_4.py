"""Figure 4: scaling curves of Table 2, and the claim."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.figures.axes import log_axis
from analysis.figures.base import Figure
from analysis.figures.law_curves import curve_with_band
from analysis.figures.marks import arm_legend
from analysis.figures.style import COLUMN, INK, PAPER, Palette, new_figure
from analysis.paper.claim import ARROW_FROM, ARROW_LOSS, ARROW_TO
from analysis.paper.figures.base import PAPER_FIGURES
from analysis.paper.numbers import Numbers
from analysis.published.attnres_scaling import (
    BASELINE,
    BLOCK,
    CLAIM,
    FULL,
    PLOTTED_COMPUTE_PFLOPS_DAYS,
    PLOTTED_CURVES,
    TABLE_2,
)

ARMS = (BASELINE, BLOCK, FULL)
_POINTS = 41


@PAPER_FIGURES.register("figure_4")
class Figure4(Figure[Numbers]):
    """Losses of three arms at five sizes, three power laws fitted here with bands, the claim's arrow."""

    title = "Figure 4 again: scaling curves of Table 2"
    needs = ()
    rank = 1

    def table(self, source: Numbers) -> pd.DataFrame:
        """Rows: point (15), curve (fitted here), drawn (the paper's own curve), arrow (its two ends)."""
        rows: list[dict[str, Any]] = [
            {"item": "point", "variant": arm, "compute": compute, "loss": cell.loss[arm]}
            for arm in ARMS
            for compute, cell in zip(PLOTTED_COMPUTE_PFLOPS_DAYS, TABLE_2, strict=True)
        ]
        grid = np.geomspace(PLOTTED_COMPUTE_PFLOPS_DAYS[0], PLOTTED_COMPUTE_PFLOPS_DAYS[-1], _POINTS)
        for arm in ARMS:
            loss, lo, hi = curve_with_band(source.laws[arm], grid)
            own = PLOTTED_CURVES[arm]
            for c, y, a, b in zip(grid, loss, lo, hi, strict=True):
                rows.append({"item": "curve", "variant": arm, "compute": c, "loss": y, "lo": a, "hi": b})
                rows.append({"item": "drawn", "variant": arm, "compute": c, "loss": own.A * c**-own.alpha})
        rows += [
            {"item": "arrow", "variant": BLOCK, "compute": c, "loss": ARROW_LOSS}
            for c in (ARROW_FROM, ARROW_TO)
        ]
        return pd.DataFrame(rows)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """Both axes logarithmic with decimal labels."""
        figure = new_figure(COLUMN, 2.9)
        axes = figure.subplots()
        for arm in ARMS:
            style = palette[arm]
            own = table[table["variant"] == arm]
            curve, drawn = own[own["item"] == "curve"], own[own["item"] == "drawn"]
            axes.fill_between(
                curve["compute"], curve["lo"], curve["hi"], color=style.colour, alpha=0.12, linewidth=0
            )
            axes.plot(curve["compute"], curve["loss"], color=style.colour, linestyle=style.dash)
            axes.plot(drawn["compute"], drawn["loss"], color=style.colour, linewidth=0.4)
            points = own[own["item"] == "point"]
            axes.plot(
                points["compute"], points["loss"], linestyle="none", marker=style.marker, color=style.colour,
                markeredgecolor=PAPER, markeredgewidth=0.4, zorder=4,
            )  # fmt: skip
        arrow = table[table["item"] == "arrow"]
        start, end = arrow["compute"]
        look = {
            "arrowstyle": "-|>,head_length=0.3,head_width=0.15",
            "color": INK,
            "linewidth": 0.9,
            "shrinkA": 0,
        }
        axes.annotate(
            "", xy=(end, ARROW_LOSS), xytext=(start, ARROW_LOSS), arrowprops=look | {"shrinkB": 0}, zorder=5
        )
        axes.annotate(
            f"claimed: {CLAIM.compute_multiplier:g}×",
            xy=(end, ARROW_LOSS),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=6.5,
        )
        points = table[table["item"] == "point"]
        log_axis(axes, "x", points["compute"].min(), points["compute"].max(), margin=0.08)
        log_axis(axes, "y", points["loss"].min(), points["loss"].max(), margin=0.08)
        axes.set_xlabel("training compute (PFLOP/s-days)")
        axes.set_ylabel("validation loss (nats/token)")
        arm_legend(figure, palette, ARMS)
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """Counts, and the arrow's own length."""
        points = table[table["item"] == "point"]
        start, end = table[table["item"] == "arrow"]["compute"]
        return (
            f"{len(points)} losses of Table 2 at the compute that Figure 4 plots, power laws fitted here "
            "with pointwise 95 % bands (thick), and the curves the paper draws (thin). The paper's arrow for "
            f"its {CLAIM.compute_multiplier:g} runs from {start:g} to {end:g} PFLOP/s-days, a factor of "
            f"{end / start:.2f}."
        )
