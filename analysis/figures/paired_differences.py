"""Difference of the paired losses, size by size, with its interval."""

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from scipy import stats

from analysis.figures.base import FIGURES, Figure, NotDrawn
from analysis.figures.marks import arm_legend
from analysis.figures.style import COLUMN, MUTED, PAPER, Palette, new_figure
from analysis.multipliers.base import LEVEL
from analysis.plan_file import LADDER_ROLES
from analysis.study import Study


@FIGURES.register("paired_differences")
class PairedDifferences(Figure[Study]):
    """Baseline loss minus the arm's loss at equal size, tokens, data order and seed."""

    title = "Paired differences by size"
    needs = ("plan.json", "runs.csv", "fits/pairs.json", "fits/noise.json")
    rank = 1

    def table(self, source: Study) -> pd.DataFrame:
        """Rows: mean (of a size, with its interval) and pair (one seed)."""
        noise = source.read_fits("noise")["pairs"]
        rows = []
        for row in source.read_fits("pairs"):
            sd, dof = (noise.get(row["variant"], {}).get(key) for key in ("sd_difference", "dof"))
            half = math.nan
            if sd is not None and dof:
                half = float(stats.t.ppf(0.5 + LEVEL / 2, dof)) * sd / math.sqrt(row["n_seeds"])
            difference = row["difference"]
            rows.append(
                {"item": "mean", "variant": row["variant"], "size": row["size"], "compute": row["compute"]}
                | {"n_seeds": row["n_seeds"], "difference": difference, "lo": difference - half}
                | {"hi": difference + half}
            )
        if not rows:
            raise NotDrawn("no finished pair")
        return pd.DataFrame(rows + _pairs(source, rows))

    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """Sizes side by side, arms dodged within them."""
        figure = new_figure(COLUMN, 2.4)
        axes = figure.subplots()
        sizes = list(dict.fromkeys(table["size"]))
        arms = [arm for arm in palette if arm in set(table["variant"])]
        axes.axhline(0.0, color=MUTED, linewidth=0.7)
        for k, arm in enumerate(arms):
            style = palette[arm]
            shift = 0.6 * ((k + 0.5) / len(arms) - 0.5)
            for row in table[table["variant"] == arm].to_dict("records"):
                x = sizes.index(row["size"]) + shift
                if row["item"] == "pair":
                    axes.plot(
                        [x + 0.07], [row["difference"]], ".", color=style.colour, markersize=2.5, alpha=0.7
                    )
                    continue
                if not math.isnan(row["lo"]):
                    axes.plot([x, x], [row["lo"], row["hi"]], color=style.colour, linewidth=1.1)
                axes.plot(
                    [x], [row["difference"]], marker=style.marker, color=style.colour, linestyle="none",
                    markeredgecolor=PAPER, markeredgewidth=0.4,
                )  # fmt: skip
        axes.set_xticks(range(len(sizes)), sizes, rotation=0 if len(sizes) <= 6 else 45)
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("size, by rising budget")
        axes.set_ylabel("baseline minus arm (nats/token)")
        arm_legend(figure, palette, arms, line=False)
        return figure

    def caption(self, table: pd.DataFrame) -> str:
        """What is drawn, and where the intervals come from."""
        means = table[table["item"] == "mean"]
        least, most = int(means["n_seeds"].min()), int(means["n_seeds"].max())
        seeds = f"{most} seed{'s' if most > 1 else ''}" if least == most else f"{least} to {most} seeds"
        bars = (
            f"Bars: {LEVEL * 100:g} % intervals of the mean, from the spread of seeds pooled over sizes."
            if means["lo"].notna().any()
            else "No intervals: no size has two finished seeds in both arms."
        )
        return (
            "Validation loss of the baseline minus that of the arm, same size, tokens, data order and seed; "
            f"above 0 the arm is better. Large marks: means over {seeds}; "
            f"dots: the single pairs behind them. {bars}"
        )


def _pairs(study: Study, means: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cells = study.cells
    used = cells[cells["role"].isin(LADDER_ROLES) & ~cells["excluded"].astype(bool)]
    base = used[used["variant"] == study.plan.baseline].set_index("pair_id")
    shown = {(row["variant"], row["size"]) for row in means if row["n_seeds"] > 1}
    rows = []
    for run in used.sort_values(["variant", "budget", "size", "seed"]).to_dict("records"):
        if (run["variant"], run["size"]) in shown and run["pair_id"] in base.index:
            rows.append(
                {"item": "pair", "variant": run["variant"], "size": run["size"], "compute": run["compute"]}
                | {"seed": run["seed"], "spec_id": run["spec_id"]}
                | {"difference": base.loc[run["pair_id"], "val_loss"] - run["val_loss"]}
            )
    return rows
