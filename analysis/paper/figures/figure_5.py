"""Figure 5: training of the 48B model: loss, output magnitude and gradient magnitude."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.figures.base import Figure
from analysis.figures.marks import arm_legend
from analysis.figures.style import PAGE, PAPER, Palette, new_figure
from analysis.paper.figures.base import PAPER_FIGURES
from analysis.paper.numbers import Numbers
from analysis.published import attnres_dynamics as facts
from analysis.published.attnres_scaling import BASELINE, BLOCK

PANELS = {
    "loss": ("step (thousands)", "validation loss (nats/token)"),
    "output": ("Transformer block", "output magnitude (undefined)"),
    "gradient": ("Transformer block", r"gradient magnitude ($10^{-5}$, undefined)"),
}


@PAPER_FIGURES.register("figure_5")
class Figure5(Figure[Numbers]):
    """Three panels, baseline and Block."""

    title = "Figure 5 again: training of the 48B model"
    needs = ()
    rank = 2

    def table(self, source: Numbers) -> pd.DataFrame:  # noqa: ARG002 (facts alone)
        """Rows: panel, arm, x (step or Transformer block), value."""
        rows: list[dict[str, Any]] = []
        for point in facts.VALIDATION_LOSS:
            for arm, loss in ((BASELINE, point.baseline), (BLOCK, point.block_attnres)):
                rows.append({"panel": "loss", "variant": arm, "x": point.step, "value": loss})
        series = {
            ("output", BASELINE): facts.OUTPUT_MAGNITUDE_BASELINE,
            ("output", BLOCK): facts.OUTPUT_MAGNITUDE_BLOCK,
            ("gradient", BASELINE): facts.GRADIENT_MAGNITUDE_BASELINE,
            ("gradient", BLOCK): facts.GRADIENT_MAGNITUDE_BLOCK,
        }
        for (panel, arm), values in series.items():
            rows += [
                {"panel": panel, "variant": arm, "x": i, "value": value} for i, value in enumerate(values)
            ]
        return pd.DataFrame(rows)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """Linear axes, as in the paper."""
        figure = new_figure(PAGE, 2.2)
        for axes, (panel, (x_label, y_label)) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
            for arm in (BASELINE, BLOCK):
                own = table[(table["panel"] == panel) & (table["variant"] == arm)]
                style = palette[arm]
                x = own["x"] / 1000 if panel == "loss" else own["x"]
                axes.plot(
                    x, own["value"], color=style.colour, linestyle=style.dash, marker=style.marker,
                    markersize=2.6, markeredgecolor=PAPER, markeredgewidth=0.2,
                )  # fmt: skip
            if panel != "loss":
                axes.set_ylim(bottom=0)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
        arm_legend(figure, palette, (BASELINE, BLOCK))
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """The ratios that the picture shows."""
        last = table[table["panel"] == "loss"].groupby("variant")["value"].last()
        spread = table[table["panel"] == "gradient"].groupby("variant")["value"].agg(["min", "max"])
        ratio = spread["max"] / spread["min"]
        return (
            f"48B model, 1T tokens. Loss at the end {last[BASELINE]:.4f} (baseline) and {last[BLOCK]:.4f} "
            "(Block). What output and gradient magnitude are is not defined in the paper, so only shapes can "
            "be compared: largest over smallest gradient magnitude "
            f"{ratio[BASELINE]:.0f} and {ratio[BLOCK]:.1f}."
        )
