"""Mixing weights over depth: who reads from whom, attention and MLP reads apart."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.dynamics import DYNAMICS_FOLDER, depth_runs
from analysis.figures.base import FIGURES, Figure, NotDrawn
from analysis.figures.heat import colour_bar, heat_map
from analysis.figures.style import PAGE, Palette, new_figure
from analysis.study import Study

KINDS = {"attention": "before attention", "mlp": "before the MLP"}


@FIGURES.register("mixing_weights")
class MixingWeights(Figure[Study]):
    """Two heat maps an arm that mixes: rows are Transformer blocks, columns sources."""

    title = "Mixing weights at the end of training"
    needs = ("plan.json", "runs.csv", DYNAMICS_FOLDER)
    rank = 11

    def table(self, source: Study) -> pd.DataFrame:
        """Rows: arm, kind of the read, Transformer block from 1, source, weight."""
        runs = [run for run in depth_runs(source) if run.mixes]
        if not runs:
            raise NotDrawn("no run has mixing weights in " + DYNAMICS_FOLDER + "/")
        rows: list[dict[str, Any]] = []
        for run in runs:
            for row in run.at_end("weight").to_dict("records"):
                rows.append(
                    {"variant": run.variant, "spec_id": run.spec_id, "size": run.size, "kind": row["kind"]}
                    | {"block": row["site"] // 2 + 1, "source": row["source"], "weight": row["value"]}
                )
        return pd.DataFrame(rows)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """One row of panels an arm, one colour range for all."""
        arms = [arm for arm in palette if arm in set(table["variant"])]
        figure = new_figure(PAGE, 0.3 + 2.2 * len(arms))
        panels = figure.subplots(len(arms), 2, squeeze=False)
        high, above = _highest(table)
        for row, arm in zip(panels, arms, strict=True):
            for axes, (kind, words) in zip(row, KINDS.items(), strict=True):
                own = table[(table["variant"] == arm) & (table["kind"] == kind)]
                grid = np.full((int(own["block"].max()), int(own["source"].max()) + 1), np.nan)
                grid[own["block"].to_numpy(int) - 1, own["source"].to_numpy(int)] = own["weight"]
                mesh = heat_map(axes, grid, 0.0, high, reverse=True)
                for axis, size, first in ((axes.xaxis, grid.shape[1], 0), (axes.yaxis, grid.shape[0], 1)):
                    ticks = [
                        int(t)
                        for t in MaxNLocator(nbins=8, integer=True).tick_values(0, size - 1)
                        if 0 <= t < size
                    ]
                    axis.set_ticks([t + 0.5 for t in ticks], [str(t + first) for t in ticks])
                axes.set_title(f"{arm}, {words}", fontsize=6.5)
                axes.set_xlabel("source (0: embedding)")
            row[0].set_ylabel("Transformer block")
        colour_bar(figure, mesh, panels.ravel().tolist(), "mean weight", shrink=0.7, above=above)
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """How much goes to the embedding."""
        parts = []
        for arm, own in table.groupby("variant", sort=False):
            embedding = own[own["source"] == 0]["weight"].mean()
            parts.append(f"{arm} {embedding:.2f}")
        sizes = ", ".join(dict.fromkeys(table["size"]))
        return (
            f"Mixing weights averaged over tokens, one run an arm ({sizes}), reads of attention and MLP "
            f"apart; hatched: not a source; a read of one source has weight 1. "
            f"Mean weight of the embedding over all reads: {', '.join(parts)}."
        )


def _highest(table: pd.DataFrame) -> tuple[float, bool]:
    """End of the colours: the largest weight among reads that have a choice; whether others are above it."""
    sources = table.groupby(["variant", "kind", "block"])["source"].transform("count")
    high = float(table.loc[sources > 1, "weight"].max())
    return high, bool(table["weight"].max() > high)
