"""What a report is written from: the files of a study, and which runs stand behind each number."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.comparison import MATCHED, TUNED, null_label
from analysis.compute_axes import EXACT
from analysis.fit_result import FitResult, read_fit_result
from analysis.headline import Multiplier, headline_of, pairs_behind
from analysis.multipliers.base import PairedArms
from analysis.plan_file import LADDER_ROLES
from analysis.study import FITS_FOLDER, Study
from attnres.errors import UserError


@dataclass(frozen=True)
class Cost:
    """What an arm costs beside the baseline; ratios arm over baseline, one a size."""

    compute: list[float]
    parameters: list[float]
    memory: list[float]
    throughput: list[float]
    """Interleaved measurement (plan.json); empty without one."""
    cell_speed: list[float]
    """Tokens a second of the cells themselves, which may have shared the machine."""


class Facts:
    """Everything the report says, read once from the files of a study."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.plan = study.plan
        self.baseline = study.plan.baseline
        self.null_label = null_label(self.baseline)
        self.arms = [arm for arm in study.plan.arms if arm != study.plan.baseline]

    @cached_property
    def controls(self) -> list[str]:
        """Arms that are planned to cost compute and change nothing."""
        own = {cell.variant for cell in self.plan.cells if cell.role == "overhead_only"}
        return [arm for arm in self.arms if arm in own]

    def fits(self, name: str) -> Any:
        """fits/<name>.json."""
        return self.study.read_fits(name)

    @cached_property
    def laws(self) -> list[FitResult]:
        """Every fitted law, refused ones included."""
        found = []
        for path in sorted((self.study.folder / FITS_FOLDER).glob("*--*.json")):
            found.append(read_fit_result(path))
        order = {arm: i for i, arm in enumerate(self.plan.arms)}
        return sorted(found, key=lambda law: (law.form, order.get(law.group, len(order))))

    def headline(self, arm: str, axis: str = EXACT, rate: str = MATCHED) -> Multiplier:
        """The headline multiplier of ``arm``."""
        return headline_of(self.study, arm, axis, rate)

    @cached_property
    def null(self) -> Multiplier:
        """The baseline against itself at other seeds."""
        return headline_of(self.study, self.null_label)

    def pairs(self, arm: str, rate: str = MATCHED) -> PairedArms | None:
        """The runs behind the multipliers of ``arm``; None where there are none to compare."""
        return self._paired.get((arm, rate))

    @cached_property
    def _paired(self) -> dict[tuple[str, str], PairedArms]:
        wanted = [(arm, rate) for arm in self.arms for rate in (MATCHED, TUNED)]
        return pairs_behind(self.study, [*wanted, (self.baseline, MATCHED), (self.null_label, MATCHED)])

    @cached_property
    def notes(self) -> list[str]:
        """What limits the study, then what must be known beside each headline."""
        own = [f"{row['variant']}: {row['note']}" for row in self.fits("notes")]
        return list(dict.fromkeys([*self.fits("counts")["notes"], *own]))

    @cached_property
    def costs(self) -> dict[str, Cost]:
        """Cost of every arm."""
        return {arm: self._cost(arm) for arm in self.arms}

    def _cost(self, arm: str) -> Cost:
        cells = self.study.cells
        used = cells[cells["role"].isin(LADDER_ROLES) & ~cells["excluded"].astype(bool)]
        left, right = (used[used["variant"] == name].set_index("pair_id") for name in (self.baseline, arm))
        common = sorted(set(left.index) & set(right.index))
        left, right = left.loc[common], right.loc[common]
        return Cost(
            compute=_by_size(right["size"], right["compute"], left["compute"]),
            parameters=_by_size(right["size"], _params(right), _params(left)),
            memory=_by_size(right["size"], right["peak_memory_bytes"], left["peak_memory_bytes"]),
            throughput=self._throughput(arm),
            cell_speed=_by_size(right["size"], right["tokens_per_second"], left["tokens_per_second"]),
        )

    def _throughput(self, arm: str) -> list[float]:
        table = self.study.throughput
        own = table[(table["variant"] == arm) & (table["baseline"] == self.baseline)]
        return [float(ratio) for ratio in own["ratio"]]

    def check_runs(self) -> None:
        """A number in the report exists as a finished run in the record.

        Raises:
            UserError: something in fits/ rests on a run that runs.csv does not hold as finished and used.
        """
        usable = set(self.study.runs.loc[~self.study.runs["excluded"].fillna(True).astype(bool), "spec_id"])
        for name, spec_ids in self._behind_files():
            for spec_id in spec_ids:
                if spec_id not in usable:
                    raise UserError(
                        f"{self.study.folder}/{FITS_FOLDER}/{name} rests on run {spec_id}, which runs.csv "
                        "does not hold as finished; make it again with: "
                        f"python -m analysis report --study {self.study.folder}"
                    )

    def _behind_files(self) -> list[tuple[str, list[str]]]:
        found = [(f"{law.form}--{law.group}", law.spec_ids) for law in self.laws]
        for name in ("residuals", "holdout"):
            found += [(f"{name}.json", row["spec_ids"]) for row in self.fits(name)]
        return found


def _params(runs: pd.DataFrame) -> pd.Series:
    parts = ["params_embedding", "params_decoder", "params_stream", "params_head"]
    return runs[parts].sum(axis=1)


def _by_size(sizes: pd.Series, above: pd.Series, below: pd.Series) -> list[float]:
    """Geometric mean of above / below within each size, pairs without both left out."""
    ratio = above.astype("float64") / below.astype("float64")
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    if len(ratio) == 0:
        return []
    means = ratio.map(math.log).groupby(sizes.loc[ratio.index], sort=False).mean()
    return [math.exp(value) for value in means]
