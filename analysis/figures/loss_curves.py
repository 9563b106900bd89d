"""Loss while training, one panel a size, all arms and seeds."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from analysis.figures.axes import log_axis
from analysis.figures.base import FIGURES, RUN_GID, Figure, NotDrawn
from analysis.figures.marks import arm_legend, run_points
from analysis.figures.style import PAGE, Palette, new_figure
from analysis.plan_file import LADDER_ROLES
from analysis.study import CURVES_FILE, Study

WINDOW = 0.02
"""Training losses are averaged over this share of the run: a batch's loss is noise at the width of a line."""
MAX_POINTS = 150
"""Points kept of a run's training curve: two a printed millimetre."""
_SHOWN_FROM = 0.05
"""Share of the run before which the y axis does not follow the loss."""


@FIGURES.register("loss_curves")
class LossCurves(Figure[Study]):
    """Training loss (lines) and validation loss (marks) against tokens."""

    title = "Loss while training"
    needs = ("plan.json", "runs.csv", CURVES_FILE)
    rank = 8

    def table(self, source: Study) -> pd.DataFrame:
        """Rows: train (smoothed) and validation, one a point of a run's curve."""
        cells = source.cells
        ladder = cells[cells["role"].isin(LADDER_ROLES)].sort_values(["budget", "size", "variant", "seed"])
        by_run = dict(tuple(source.curves.groupby("spec_id")))
        parts = []
        for run in ladder[["spec_id", "variant", "size", "seed", "excluded"]].to_dict("records"):
            if run["spec_id"] in by_run:
                parts.append(_points(by_run[run["spec_id"]]).assign(**{str(k): v for k, v in run.items()}))
        table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        if len(table) == 0:
            raise NotDrawn(f"{CURVES_FILE} has no point of a run of the ladder")
        return table[["size", "variant", "seed", "spec_id", "excluded", "item", "tokens", "loss"]]

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """Small multiples, sizes by rising budget."""
        sizes = list(dict.fromkeys(table["size"]))
        columns = min(3, len(sizes))
        rows = math.ceil(len(sizes) / columns)
        figure = new_figure(PAGE, 0.35 + 1.75 * rows)
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel, size in zip(panels, sizes, strict=False):
            _draw_size(panel, table[table["size"] == size], palette)
            panel.set_title(size)
        for panel in panels[len(sizes) :]:
            panel.set_visible(False)
        figure.supxlabel("training tokens", fontsize=7.5)
        figure.supylabel("loss (nats/token)", fontsize=7.5)
        arm_legend(figure, palette, list(table["variant"]))
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """What is drawn, with its counts."""
        runs = table.drop_duplicates("spec_id")
        broken = int(runs["excluded"].sum())
        left = f", {broken} of which are left out of the fits" if broken else ""
        return (
            f"Training loss, averaged over {WINDOW * 100:g} % of the run (lines), and validation loss "
            f"(marks) of {len(runs)} runs{left}, one panel a size. The first {_SHOWN_FROM * 100:g} % of a "
            "run may leave the panel."
        )


def _points(curve: pd.DataFrame) -> pd.DataFrame:
    curve = curve.sort_values("step")
    train = curve.dropna(subset=["train_loss"])
    window = max(1, round(WINDOW * len(train)))
    smooth = train["train_loss"].rolling(window, min_periods=1).mean()
    keep = np.unique(np.linspace(0, len(train) - 1, min(MAX_POINTS, len(train))).astype(int))
    lines = pd.DataFrame(
        {"item": "train", "tokens": train["tokens"].to_numpy()[keep], "loss": smooth.to_numpy()[keep]}
    )
    measured = curve.dropna(subset=["val_loss"])
    marks = pd.DataFrame(
        {
            "item": "validation",
            "tokens": measured["tokens"].to_numpy(),
            "loss": measured["val_loss"].to_numpy(),
        }
    )
    return pd.concat([part for part in (lines, marks) if len(part)] or [lines], ignore_index=True)


def _draw_size(axes: Axes, table: pd.DataFrame, palette: Palette) -> None:
    for spec_id, run in table.groupby("spec_id", sort=False):
        style = palette[run["variant"].iloc[0]]
        train = run[run["item"] == "train"]
        axes.plot(
            train["tokens"] / 1e6, train["loss"], color=style.colour, linestyle=style.dash, linewidth=0.8,
            alpha=0.9, gid=f"{RUN_GID}{spec_id}",
        )  # fmt: skip
        marks = run[run["item"] == "validation"]
        run_points(axes, marks["tokens"] / 1e6, marks["loss"], style, str(spec_id))
    late = table[table["tokens"] >= _SHOWN_FROM * table["tokens"].max()]
    log_axis(axes, "y", late["loss"].min(), late["loss"].max(), most=5)
    axes.set_xlim(0, table["tokens"].max() / 1e6 * 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}M" if value else "0")
