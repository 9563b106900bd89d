"""Loss against size at equal compute: where is the optimum of each arm?"""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.figures.axes import log_axis
from analysis.figures.base import FIGURES, Figure, NotDrawn
from analysis.figures.marks import arm_legend
from analysis.figures.style import INK, PAGE, PAPER, Palette, new_figure
from analysis.fit_result import FitResult
from analysis.forms.base import form_named
from analysis.study import Study
from analysis.wording import digits

_POINTS = 41


@FIGURES.register("isoflop_slices")
class IsoflopSlices(Figure[Study]):
    """Points and parabolas of every budget, one panel an arm."""

    title = "isoFLOP slices"
    needs = ("plan.json", "fits/isoflop.json")
    rank = 7

    def table(self, source: Study) -> pd.DataFrame:
        """Rows: point, parabola, optimum; and law, the exponent of the optimal size."""
        rows: list[dict[str, Any]] = []
        for own in source.read_fits("isoflop"):
            variant, law = own["variant"], own["law"]
            for point in own["points"]:
                facts = {name: point[name] for name in ("budget", "params", "loss")}
                rows.append({"item": "point", "variant": variant, **facts})
            for budget, fitted in zip(law["budgets"], law["slices"], strict=True):
                sizes = [point["params"] for point in own["points"] if point["budget"] == budget]
                rows += _curve(variant, budget, FitResult.model_validate(fitted), min(sizes), max(sizes))
            error = law["standard_error"]
            rows.append({"item": "law", "variant": variant, "exponent": law["exponent"], "se": error})
        if not rows:
            raise NotDrawn("no budget was trained at three sizes")
        columns = ["item", "variant", "budget", "params", "loss", "exponent", "se"]
        return pd.DataFrame(rows, columns=columns)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """Arms side by side on the same axes."""
        arms = [arm for arm in palette if arm in set(table["variant"])]
        columns = min(3, len(arms))
        rows = math.ceil(len(arms) / columns)
        figure = new_figure(PAGE, 0.5 + 2.0 * rows)
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
        points = table[table["item"] == "point"]
        for panel, arm in zip(panels, arms, strict=False):
            _draw_arm(panel, table[table["variant"] == arm], palette, arm)
            log_axis(panel, "x", points["params"].min(), points["params"].max(), most=5, margin=0.08)
            log_axis(panel, "y", points["loss"].min(), points["loss"].max(), most=6, margin=0.08)
            panel.xaxis.set_major_formatter(lambda value, _: _short(value))
        for panel in panels[len(arms) :]:
            panel.set_visible(False)
        figure.supxlabel("parameters", fontsize=7.5)
        figure.supylabel("validation loss (nats/token)", fontsize=7.5)
        arm_legend(figure, palette, arms)
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """The exponents of the optimal size."""
        words = []
        for law in table[table["item"] == "law"].to_dict("records"):
            error = f" ± {digits(law['se'], 2)}" if not math.isnan(law["se"]) else ""
            known = not math.isnan(law["exponent"])
            words.append(
                f"{law['variant']} {digits(law['exponent'], 3) + error if known else 'not identifiable'}"
            )
        return (
            "Validation loss against all parameters of the arm at equal budgets (FLOPs, beside each curve), "
            "with the parabolas in ln parameters and their lowest points. Exponent of the optimal size in "
            f"compute: {'; '.join(words)}."
        )


def _short(value: float) -> str:
    """A number of parameters: 33k, 1.2M."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def _flops(value: float) -> str:
    """A budget at its curve: 1.6 x 10^13."""
    exponent = math.floor(math.log10(value) + 1e-9)
    return rf"${value / 10.0**exponent:.3g}\times 10^{{{exponent}}}$"


def _curve(variant: str, budget: float, fitted: FitResult, low: float, high: float) -> list[dict[str, Any]]:
    if not fitted.usable:
        return []
    sizes = np.geomspace(low, high, _POINTS)
    losses = form_named(fitted.form).predict(fitted.parameters, {"params": sizes})
    common = {"variant": variant, "budget": budget}
    rows = [
        {"item": "parabola", **common, "params": n, "loss": y} for n, y in zip(sizes, losses, strict=True)
    ]
    best = {"params": fitted.parameters["n_opt"], "loss": fitted.parameters["loss_min"]}
    return [*rows, {"item": "optimum", **common, **best}]


def _draw_arm(axes: Axes, table: pd.DataFrame, palette: Palette, arm: str) -> None:
    style = palette[arm]
    for _, own in table[table["item"] == "parabola"].groupby("budget"):
        axes.plot(own["params"], own["loss"], color=style.colour, linestyle=style.dash, linewidth=0.9)
    points, best = table[table["item"] == "point"], table[table["item"] == "optimum"]
    axes.set_title(arm, fontsize=6.5)
    for budget, own in points.groupby("budget"):
        last = own.sort_values("params").iloc[-1]
        axes.annotate(
            _flops(float(str(budget))), (last["params"], last["loss"]), (-1, 4), textcoords="offset points",
            ha="right", va="bottom", fontsize=5.5, color=INK,
        )  # fmt: skip
    axes.plot(
        points["params"], points["loss"], linestyle="none", marker=style.marker, color=style.colour,
        markeredgecolor=PAPER, markeredgewidth=0.4, zorder=4,
    )  # fmt: skip
    axes.plot(
        best["params"], best["loss"], linestyle="none", marker="x", color=style.colour, markersize=4, zorder=5
    )
