"""What happened over depth: dynamics/<spec_id>.parquet of a run, copied, summed up, and watched for trouble.

One row a (step, site, kind, source, quantity), `DYNAMICS_COLUMNS`. ``site`` is the sublayer, 0 to
2 depth - 1, and 2 depth for the read of the output; ``source`` is -1 where there is none.
"""

import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
from pyarrow import ArrowInvalid

from analysis.plan_file import LADDER_ROLES
from analysis.schema import DYNAMICS_COLUMNS
from analysis.study import Study
from attnres.errors import UserError
from attnres.files import atomic_path, remove_leftovers

DYNAMICS_FOLDER = "dynamics"
RUN_FILE = "dynamics.parquet"
"""Name in a run directory."""

WATCHED = ("output", "hidden", "gradient")
"""Quantities whose spikes over depth are reported."""
SPIKE = 10.0
"""A sublayer this many times the median of its `NEIGHBOURS` is a spike."""
NEIGHBOURS = (-4, -2, 2, 4)
"""Attention is compared with attention and MLP with MLP: one may be far above the other throughout."""
COLLAPSED = 0.02
"""Share of the largest possible entropy, ln n, below which a read attends to one source alone."""


@dataclass(frozen=True)
class DepthRun:
    """The dynamics of one run."""

    variant: str
    spec_id: str
    size: str
    seed: int
    table: pd.DataFrame

    @property
    def name(self) -> str:
        """Which run of its arm."""
        return f"{self.size}, seed {self.seed}"

    @property
    def mixes(self) -> bool:
        """Whether its reads have weights of their own."""
        return bool((self.table["quantity"] == "entropy").any())

    def of(self, quantity: str) -> pd.DataFrame:
        """Rows of ``quantity``; of the gradient those at the last sublayer of each Transformer block."""
        own = self.table[self.table["quantity"] == quantity]
        return own[own["kind"] == "mlp"] if quantity == "gradient" else own

    def at_end(self, quantity: str) -> pd.DataFrame:
        """Rows of ``quantity`` at the last step, by site and source."""
        own = self.of(quantity)
        last: pd.DataFrame = own[own["step"] == own["step"].max()].sort_values(["site", "source"])
        return last


@dataclass(frozen=True)
class Spike:
    """A sublayer that stands out: ``times`` the median of its neighbours at ``step``, its worst."""

    quantity: str
    site: int
    step: int
    times: float


def copy_dynamics(study_folder: Path, runs_root: Path, spec_ids: Iterable[str]) -> None:
    """Copy the dynamics of the runs that have any to dynamics/<spec_id>.parquet; remove those of others.

    Raises:
        UserError: a file breaks the contract; it is named.
    """
    folder = study_folder / DYNAMICS_FOLDER
    found = {f"{spec_id}.parquet": runs_root / spec_id / RUN_FILE for spec_id in spec_ids}
    found = {name: path for name, path in found.items() if path.exists()}
    if folder.is_dir():
        remove_leftovers(folder)
        for path in folder.glob("*.parquet"):
            if path.name not in found:
                path.unlink()
    for name, path in found.items():
        _read(path)
        folder.mkdir(exist_ok=True)
        with atomic_path(folder / name) as temporary:
            shutil.copyfile(path, temporary)


def depth_runs(study: Study) -> list[DepthRun]:
    """One run an arm, with dynamics: largest size that has them, lowest seed.

    Raises:
        UserError: a file breaks the contract; it and the column are named.
    """
    cells = study.cells
    used = cells[cells["role"].isin(LADDER_ROLES) & ~cells["excluded"].astype(bool)]
    used = _with_dynamics(study, used).sort_values(
        ["budget", "size", "seed"], ascending=[False, False, True], kind="stable"
    )
    return [_depth_run(study, used[used["variant"] == arm].iloc[0]) for arm in _arms(study, used)]


def every_depth_run(study: Study) -> list[DepthRun]:
    """All planned runs with dynamics, whatever became of them, arm by arm."""
    cells = _with_dynamics(study, study.cells)
    return [
        _depth_run(study, row)
        for arm in _arms(study, cells)
        for _, row in cells[cells["variant"] == arm].iterrows()
    ]


def read_dynamics(study: Study, spec_id: str) -> pd.DataFrame:
    """dynamics/<spec_id>.parquet.

    Raises:
        UserError: it is damaged, or a column is missing.
    """
    return _read(study.folder / DYNAMICS_FOLDER / f"{spec_id}.parquet")


def alarms(runs: Sequence[DepthRun]) -> Iterator[str]:
    """Spikes over depth and collapsed reads, one line an arm and trouble, in words. ``runs``: arm by arm."""
    for arm, group in groupby(runs, key=lambda run: run.variant):
        own = list(group)
        found = [(spike, run) for run in own for spike in spikes(run)]
        if found:
            worst, run = max(found, key=lambda pair: pair[0].times)
            number = len({one.spec_id for _, one in found})
            yield (
                f"{arm}: {_count(number, own)} a spike over depth; the largest: {worst.quantity} of sublayer "
                f"{worst.site}, {worst.times:.3g} times the median of its neighbours "
                f"({run.name}, step {worst.step})"
            )
        closed = [(collapsed_reads(run), run) for run in own]
        closed = [(sites, run) for sites, run in closed if sites]
        if closed:
            sites, run = max(closed, key=lambda pair: len(pair[0]))
            named = ", ".join(map(str, sites))
            yield (
                f"{arm}: {_count(len(closed), own)} reads that attend to one source alone at the end; the "
                f"most: {len(sites)} of {len(entropy_shares(run))} (sites {named}; {run.name})"
            )


def spikes(run: DepthRun) -> list[Spike]:
    """Sublayers beyond `SPIKE` times their neighbours at any recorded step, each once."""
    found = []
    for quantity in WATCHED:
        rows = run.table[run.table["quantity"] == quantity]
        table = rows.pivot_table(index="step", columns="site", values="value")
        values_SL, sites = table.to_numpy(float), table.columns.to_numpy(int)
        for place, site in enumerate(sites):
            beside = np.flatnonzero(np.isin(sites - site, NEIGHBOURS))
            if len(beside):
                median_S = np.median(values_SL[:, beside], axis=1)
                times_S = values_SL[:, place] / np.where(median_S > 0, median_S, np.inf)
                worst = int(times_S.argmax())
                if times_S[worst] > SPIKE:
                    step = int(table.index.to_numpy(int)[worst])
                    found.append(Spike(quantity, int(site), step, float(times_S[worst])))
    return found


def collapsed_reads(run: DepthRun) -> list[int]:
    """Sites of the reads that attend to one source alone at the last step."""
    shares = entropy_shares(run)
    return [int(site) for site in shares[shares < COLLAPSED].index]


def entropy_shares(run: DepthRun) -> pd.Series:
    """Entropy of each read of two sources or more at the last step, over its largest value ln n; by site."""
    number = run.at_end("weight").groupby("site")["source"].nunique()
    entropy = run.at_end("entropy").groupby("site")["value"].mean()
    number = number[number > 1]
    known = entropy.loc[entropy.index.intersection(number.index)]
    return known / number.loc[known.index].map(math.log)


def _count(number: int, runs: Sequence[DepthRun]) -> str:
    return f"{number} of {len(runs)} runs {'has' if number == 1 else 'have'}"


def _with_dynamics(study: Study, cells: pd.DataFrame) -> pd.DataFrame:
    has = [(study.folder / DYNAMICS_FOLDER / f"{spec_id}.parquet").exists() for spec_id in cells["spec_id"]]
    return cells[np.array(has, dtype=bool)]


def _arms(study: Study, cells: pd.DataFrame) -> list[str]:
    return [arm for arm in study.plan.arms if arm in set(cells["variant"])]


def _depth_run(study: Study, row: pd.Series) -> DepthRun:
    spec_id = str(row["spec_id"])
    table = read_dynamics(study, spec_id)
    return DepthRun(str(row["variant"]), spec_id, str(row["size"]), int(row["seed"]), table)


def _read(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
    except ArrowInvalid as error:
        raise UserError(f"{path}: damaged ({error}); make it again with `analysis table`") from None
    missing = [column.name for column in DYNAMICS_COLUMNS if column.name not in table.columns]
    if missing:
        raise UserError(f"{path}: no column {', '.join(missing)}")
    return table
