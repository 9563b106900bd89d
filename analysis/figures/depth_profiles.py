"""Magnitudes over depth: at the end of training, and their largest value over time."""

from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.dynamics import DYNAMICS_FOLDER, depth_runs
from analysis.figures.axes import log_axis, scale_of
from analysis.figures.base import FIGURES, Figure, NotDrawn
from analysis.figures.marks import arm_legend
from analysis.figures.style import PAGE, PAPER, Palette, new_figure
from analysis.study import Study

_SMALL = 0.01
"""Below, values are shown in units of a power of ten."""


class DepthProfile(Figure[Study]):
    """One quantity of one run an arm.

    Class attributes:
        quantity: of the dynamics table.
        axis: its definition in words, on the axis.
        depth_axis: what the x axis counts.
        by_block: whether it counts Transformer blocks, from 1; else sublayers, from 0.
    """

    quantity: ClassVar[str]
    axis: ClassVar[str]
    depth_axis: ClassVar[str]
    by_block: ClassVar[bool]

    def table(self, source: Study) -> pd.DataFrame:
        """Rows: profile (place in depth, value at the last step) and course (step, largest over depth)."""
        rows: list[dict[str, Any]] = []
        for run in depth_runs(source):
            own = run.of(self.quantity)
            own = own[own["value"] > 0]
            common = {"variant": run.variant, "spec_id": run.spec_id, "size": run.size}
            last = own[own["step"] == own["step"].max()].groupby("site")["value"].mean()
            if self.by_block:
                last.index = last.index // 2 + 1
            rows += [{"item": "profile", **common, "x": place, "value": v} for place, v in last.items()]
            course = own.groupby("step")["value"].max()
            rows += [{"item": "course", **common, "x": step, "value": v} for step, v in course.items()]
        if not rows:
            raise NotDrawn(f"no run has a {self.quantity} in {DYNAMICS_FOLDER}/")
        return pd.DataFrame(rows)

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """Left: over depth. Right: over time. One logarithmic axis for both."""
        figure = new_figure(PAGE, 2.5)
        left, right = figure.subplots(1, 2, sharey=True)
        scale, unit = scale_of(table["value"]) if table["value"].max() < _SMALL else (1.0, "")
        for axes, item in ((left, "profile"), (right, "course")):
            for arm, style in palette.items():
                own = table[(table["variant"] == arm) & (table["item"] == item)]
                axes.plot(
                    own["x"], own["value"] / scale, color=style.colour, linestyle=style.dash,
                    marker=style.marker, markersize=3, markeredgecolor=PAPER, markeredgewidth=0.3,
                )  # fmt: skip
            log_axis(axes, "y", table["value"].min() / scale, table["value"].max() / scale, most=6)
        left.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        steps = table[table["item"] == "course"]["x"]
        log_axis(right, "x", steps.min(), steps.max(), most=6)
        left.set_ylabel(f"{self.axis} ({unit})" if unit else self.axis)
        left.set_xlabel(f"{self.depth_axis}; at the last step")
        right.set_xlabel("step; the largest over depth")
        arm_legend(figure, palette, list(table["variant"]))
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """Which runs, and how uneven they are over depth."""
        profile = (
            table[table["item"] == "profile"].groupby("variant", sort=False)["value"].agg(["min", "max"])
        )
        spread = ", ".join(f"{arm} {row['max'] / row['min']:.3g}" for arm, row in profile.iterrows())
        sizes = ", ".join(dict.fromkeys(table["size"]))
        return (
            f"One run an arm ({sizes}), {' '.join(self.axis.split())}; left over depth at the last step, "
            f"right the largest value over depth while training. Largest over smallest at the end: {spread}."
        )


@FIGURES.register("output_magnitude")
class OutputMagnitude(DepthProfile):
    """RMS of each sublayer's output."""

    title = "Output magnitude over depth"
    needs = ("plan.json", "runs.csv", DYNAMICS_FOLDER)
    rank = 9
    quantity = "output"
    axis = "RMS over tokens and channels\nof the sublayer's output"
    depth_axis = "sublayer (even: attention, odd: MLP)"
    by_block = False


@FIGURES.register("gradient_magnitude")
class GradientMagnitude(DepthProfile):
    """RMS of dL/dy, y the tensor that the last sublayer of a Transformer block writes to the stream."""

    title = "Gradient magnitude over depth"
    needs = ("plan.json", "runs.csv", DYNAMICS_FOLDER)
    rank = 10
    quantity = "gradient"
    axis = "RMS of dL/dy, y the output\nof the block's last sublayer"
    depth_axis = "Transformer block"
    by_block = True
