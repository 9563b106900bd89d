"""Figure 8: learned mixing weights of Full and Block, before attention and before the MLP."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.figures.base import Figure
from analysis.figures.heat import colour_bar, heat_map
from analysis.figures.style import PAGE, Palette, new_figure
from analysis.paper.figures.base import PAPER_FIGURES
from analysis.paper.numbers import Numbers
from analysis.published import attnres_weights as facts

PANELS = (("full", "attention"), ("full", "mlp"), ("block", "attention"), ("block", "mlp"))
_TOP = 0.9


@PAPER_FIGURES.register("figure_8")
class Figure8(Figure[Numbers]):
    """Four heat maps: rows are Transformer blocks, columns sources; blank where the value was not read."""

    title = "Figure 8 again: learned mixing weights"
    needs = ()
    rank = 5

    def table(self, source: Numbers) -> pd.DataFrame:  # noqa: ARG002 (facts alone)
        """Rows: stream, place (attention or mlp), Transformer block (from 1), source, weight."""
        rows = [*_full("attention"), *_full("mlp")]
        for place, grid in (("attention", facts.BLOCK_BEFORE_ATTENTION), ("mlp", facts.BLOCK_BEFORE_MLP)):
            rows += [
                _row("block", place, b + 1, s, w) for b, own in enumerate(grid) for s, w in enumerate(own)
            ]
        return pd.DataFrame(rows)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:  # noqa: ARG002 (no arm's colour)
        """One colour range, as in the paper."""
        figure = new_figure(PAGE, 4.6)
        shown = figure.subplots(2, 2).ravel()
        for axes, (stream, place) in zip(shown, PANELS, strict=True):
            own = table[(table["stream"] == stream) & (table["place"] == place)]
            grid = np.full((16, int(own["source"].max()) + 1), np.nan)
            grid[own["block"].to_numpy(int) - 1, own["source"].to_numpy(int)] = own["weight"]
            mesh = heat_map(axes, grid, 0.0, _TOP)
            step = 4 if stream == "full" else 1
            ticks = np.arange(0, grid.shape[1], step)
            axes.set_xticks(ticks + 0.5, [f"{tick:g}" for tick in ticks])
            axes.set_yticks(np.arange(0, 16, 3) + 0.5, [f"{row + 1}" for row in range(0, 16, 3)])
            axes.set_title(
                f"{stream.capitalize()}, before {'attention' if place == 'attention' else 'the MLP'}"
            )
            axes.set_xlabel("source (0: embedding)")
            axes.set_ylabel("Transformer block")
        colour_bar(figure, mesh, list(shown), "mean weight", shrink=0.6)
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """How much of the picture is known."""
        full = table[table["stream"] == "full"]
        block = table[table["stream"] == "block"]
        sums = block.groupby(["place", "block"])["weight"].sum()
        return (
            f"436M models, weights averaged over tokens. Of Full, {len(full)} weights were read from the "
            "paper's source (embedding, previous sublayer, strongest others); grey: not read. Of Block all "
            f"{len(block)}; its rows sum to {sums.min():.3f} to {sums.max():.3f}, as rounded weights may."
        )


def _row(stream: str, place: str, block: int, source: int, weight: float) -> dict[str, Any]:
    return {"stream": stream, "place": place, "block": block, "source": source, "weight": weight}


def _full(place: str) -> list[dict[str, Any]]:
    """Known cells of Full: embedding, previous sublayer, and the strongest others."""
    attention = place == "attention"
    embedding = facts.FULL_EMBEDDING_BEFORE_ATTENTION if attention else facts.FULL_EMBEDDING_BEFORE_MLP
    previous = facts.FULL_PREVIOUS_BEFORE_ATTENTION if attention else facts.FULL_PREVIOUS_BEFORE_MLP
    first = 2 if attention else 1
    known = {(b + 1, 0): weight for b, weight in enumerate(embedding)}
    # Attention of block b follows the MLP of block b - 1 (source 2b - 2); its MLP its attention (2b - 1).
    known |= {(b, 2 * b - (2 if attention else 1)): w for b, w in enumerate(previous, start=first)}
    known |= {(b, source): w for b, where, source, w in facts.FULL_STRONGEST if where == place}
    return [_row("full", place, block, source, weight) for (block, source), weight in sorted(known.items())]
