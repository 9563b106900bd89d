"""Figure 7: loss over width, depth and heads at one compute."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.figures.base import Figure
from analysis.figures.heat import colour_bar, heat_map
from analysis.figures.style import PAGE, Palette, new_figure
from analysis.paper.figures.base import PAPER_FIGURES
from analysis.paper.numbers import Numbers
from analysis.published import attnres_ablations as facts
from analysis.wording import digits

PANELS = {"baseline": facts.ARCHITECTURE_BASELINE, "attnres": facts.ARCHITECTURE_ATTNRES}


@PAPER_FIGURES.register("figure_7")
class Figure7(Figure[Numbers]):
    """Two grids of 5 x 5 losses; the best of each is starred."""

    title = "Figure 7 again: shape of the model at one compute"
    needs = ()
    rank = 4

    def table(self, source: Numbers) -> pd.DataFrame:  # noqa: ARG002 (facts alone)
        """Rows: arm, heads over depth, width over depth, loss."""
        return pd.DataFrame(
            {"variant": arm, "heads_over_depth": heads, "width_over_depth": width, "loss": loss}
            for arm, grid in PANELS.items()
            for heads, row in zip(facts.HEADS_OVER_DEPTH, grid, strict=True)
            for width, loss in zip(facts.WIDTH_OVER_DEPTH, row, strict=True)
        )

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:  # noqa: ARG002 (no arm's colour)
        """Both panels on one colour range, every value written."""
        figure = new_figure(PAGE, 2.6)
        low, high = table["loss"].min(), table["loss"].max()
        shown = figure.subplots(1, 2, sharey=True)
        for axes, (arm, title) in zip(shown, (("baseline", "baseline"), ("attnres", "AttnRes")), strict=True):
            own = table[table["variant"] == arm]
            grid = own.pivot(index="heads_over_depth", columns="width_over_depth", values="loss").sort_index(
                ascending=False
            )
            best = np.unravel_index(np.argmin(grid.to_numpy()), grid.shape)
            mesh = heat_map(
                axes,
                grid.to_numpy(),
                low,
                high,
                text="{:.3f}",
                marked=(int(best[0]), int(best[1])),
                reverse=True,
            )
            axes.set_xticks(np.arange(grid.shape[1]) + 0.5, [f"{value:g}" for value in grid.columns])
            axes.set_yticks(np.arange(grid.shape[0]) + 0.5, [f"{value:g}" for value in grid.index])
            axes.set_title(title)
            axes.set_xlabel("width / depth")
        shown[0].set_ylabel("heads / depth")
        colour_bar(figure, mesh, list(shown), "validation loss (nats/token)", shrink=0.9)
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """Best of each panel, and the gain cell by cell."""
        wide = table.pivot(index=["heads_over_depth", "width_over_depth"], columns="variant", values="loss")
        gain = wide["baseline"] - wide["attnres"]
        best = table.loc[table.groupby("variant")["loss"].idxmin()].set_index("variant")
        width, heads = best["width_over_depth"], best["heads_over_depth"]
        return (
            f"About {digits(facts.ARCHITECTURE_COMPUTE, 2)} FLOPs a cell, one run each, depth in Transformer "
            "blocks; which AttnRes the right panel shows is not stated. Starred: the best, at width / depth "
            f"{width['baseline']:g} (baseline) and {width['attnres']:g} (AttnRes), heads / depth "
            f"{heads['baseline']:g} and {heads['attnres']:g}. Gain of a cell {gain.min():.3f} to "
            f"{gain.max():.3f}, mean {gain.mean():.3f} nats."
        )
