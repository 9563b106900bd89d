"""Loss against the learning rate, by size: is every arm at its best rate?"""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.figures.axes import log_axis
from analysis.figures.base import FIGURES, Figure, NotDrawn
from analysis.figures.marks import arm_legend
from analysis.figures.style import PAGE, PAPER, Palette, new_figure
from analysis.study import Study

_POINTS = 31


@FIGURES.register("learning_rates")
class LearningRates(Figure[Study]):
    """Points of every rate, the parabola through the best one and its neighbours, its lowest point."""

    title = "Learning rates"
    needs = ("plan.json", "fits/rates.json")
    rank = 6

    def table(self, source: Study) -> pd.DataFrame:
        """Rows: rate (a trained one), parabola (through three of them), optimum."""
        rows: list[dict[str, Any]] = []
        for own in source.read_fits("rates"):
            common = {"variant": own["variant"], "size": own["size"], "budget": own["budget"]}
            rows += [
                {"item": "rate", **common, "lr": lr, "loss": loss}
                for lr, loss in zip(own["rates"], own["losses"], strict=True)
            ]
            if own["optimum"] is not None:
                curve = _parabola(own["rates"], own["losses"], own["best"])
                rows += [{"item": "parabola", **common, "lr": lr, "loss": y} for lr, y in curve]
                rows.append({"item": "optimum", **common, "lr": own["optimum"]})
        if not rows:
            raise NotDrawn("no size was trained at three rates")
        return pd.DataFrame(rows, columns=["item", "variant", "size", "budget", "lr", "loss"])

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """One panel a size and budget."""
        rungs = list(dict.fromkeys(zip(table["size"], table["budget"], strict=True)))
        columns = min(3, len(rungs))
        rows = math.ceil(len(rungs) / columns)
        figure = new_figure(PAGE, 0.45 + 1.8 * rows)
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel, (size, budget) in zip(panels, rungs, strict=False):
            _draw_rung(panel, table[(table["size"] == size) & (table["budget"] == budget)], palette)
            panel.set_title(size)
        for panel in panels[len(rungs) :]:
            panel.set_visible(False)
        figure.supxlabel("peak learning rate", fontsize=7.5)
        figure.supylabel("validation loss (nats/token)", fontsize=7.5)
        arm_legend(figure, palette, list(table["variant"]))
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """Which arms have their best rate at an edge."""
        rungs = table.drop_duplicates(["variant", "size", "budget"])
        found = table[table["item"] == "optimum"]
        inside = set(zip(found["variant"], found["size"], found["budget"], strict=True))
        listed = zip(rungs["variant"], rungs["size"], rungs["budget"], strict=True)
        edges = [
            f"{variant} at {size}"
            for variant, size, budget in listed
            if (variant, size, budget) not in inside
        ]
        words = f" Best at the edge of the rates tried: {', '.join(edges)}." if edges else ""
        return (
            "Validation loss, seeds averaged, against the peak learning rate; lines: the parabola in ln rate "
            f"through the best rate and its neighbours; ticks at the bottom: its lowest point.{words}"
        )


def _parabola(rates: list[float], losses: list[float], best: float) -> list[tuple[float, float]]:
    """The curve through the best rate and its neighbours."""
    at = rates.index(best)
    x, y = np.log(rates[at - 1 : at + 2]), np.array(losses[at - 1 : at + 2])
    grid = np.linspace(x[0], x[-1], _POINTS)
    curve = np.polyval(np.polyfit(x - x[1], y, 2), grid - x[1])
    return [(float(np.exp(a)), float(b)) for a, b in zip(grid, curve, strict=True)]


def _draw_rung(axes: Axes, table: pd.DataFrame, palette: Palette) -> None:
    for arm, style in palette.items():
        own = table[table["variant"] == arm]
        rates, curve, best = (own[own["item"] == item] for item in ("rate", "parabola", "optimum"))
        axes.plot(
            rates["lr"], rates["loss"], linestyle="none", marker=style.marker, color=style.colour,
            markeredgecolor=PAPER, markeredgewidth=0.4, zorder=4,
        )  # fmt: skip
        axes.plot(curve["lr"], curve["loss"], color=style.colour, linestyle=style.dash)
        for lr in best["lr"]:
            axes.plot(
                [lr, lr], [0, 0.06], transform=axes.get_xaxis_transform(), color=style.colour, linewidth=1.3
            )
    rates = table[table["item"] == "rate"]
    log_axis(axes, "x", rates["lr"].min(), rates["lr"].max(), most=5, margin=0.08)
    log_axis(axes, "y", rates["loss"].min(), rates["loss"].max(), most=5, margin=0.1)
