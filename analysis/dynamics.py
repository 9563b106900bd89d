"""What happened over depth: dynamics/<spec_id>.parquet of a run, summed up, and watched for trouble.

One row a (step, site, kind, source, quantity). ``site`` is the sublayer, 0 .. 2 depth - 1, and 2 depth
for the read of the output; ``kind`` says whose read or output it is; ``source`` is -1 where there is none.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from analysis.plan_file import LADDER_ROLES
from analysis.schema import DYNAMICS_COLUMNS
from analysis.study import Study
from attnres.errors import UserError

DYNAMICS_FOLDER = "dynamics"

SPIKE = 10.0
"""A sublayer whose output is this many times each neighbour's is reported."""
COLLAPSED = 0.02
"""Share of the largest possible entropy, ln n, below which a read attends to one source alone."""


@dataclass(frozen=True)
class DepthRun:
    """The dynamics of one run."""

    variant: str
    spec_id: str
    size: str
    table: pd.DataFrame

    def at_end(self, quantity: str) -> pd.DataFrame:
        """Rows of ``quantity`` at the last step, by site and source."""
        own = self.table[self.table["quantity"] == quantity]
        last: pd.DataFrame = own[own["step"] == own["step"].max()].sort_values(["site", "source"])
        return last


def depth_runs(study: Study) -> list[DepthRun]:
    """One run an arm, with dynamics: largest size that has them, lowest seed.

    Raises:
        UserError: a file breaks the contract; it and the column are named.
    """
    cells = study.cells
    used = cells[cells["role"].isin(LADDER_ROLES) & ~cells["excluded"].astype(bool)]
    has = [(study.folder / DYNAMICS_FOLDER / f"{s}.parquet").exists() for s in used["spec_id"]]
    used = used[has].sort_values(["budget", "size", "seed"], ascending=[False, False, True])
    found = []
    for arm in study.plan.arms:
        own = used[used["variant"] == arm]
        if len(own):
            spec_id, size = str(own["spec_id"].iloc[0]), str(own["size"].iloc[0])
            found.append(DepthRun(arm, spec_id, size, read_dynamics(study, spec_id)))
    return found


def read_dynamics(study: Study, spec_id: str) -> pd.DataFrame:
    """dynamics/<spec_id>.parquet.

    Raises:
        UserError: a column is missing.
    """
    path = study.folder / DYNAMICS_FOLDER / f"{spec_id}.parquet"
    table = pd.read_parquet(path)
    missing = [column.name for column in DYNAMICS_COLUMNS if column.name not in table.columns]
    if missing:
        raise UserError(f"{path}: no column {', '.join(missing)}")
    return table


def alarms(run: DepthRun) -> Iterator[str]:
    """Spikes over depth and collapsed reads at the last step, in words."""
    output = run.at_end("output").groupby("site")["value"].mean()
    for i, (site, value) in enumerate(output.items()):
        beside = [output.iloc[k] for k in (i - 1, i + 1) if 0 <= k < len(output)]
        if beside and value > SPIKE * max(beside):
            times = f"{value / max(beside):.3g} times its neighbours' magnitude"
            yield f"{run.variant}: sublayer {site} puts out {times}"
    shares = entropy_shares(run)
    collapsed = shares[shares < COLLAPSED]
    if len(collapsed):
        sites = ", ".join(str(site) for site in collapsed.index)
        number = f"{len(collapsed)} of {len(shares)} reads attend to one source alone"
        yield f"{run.variant}: {number} (sites {sites})"


def entropy_shares(run: DepthRun) -> pd.Series:
    """Entropy of each read of two sources or more at the last step, over its largest value ln n; by site."""
    number = run.at_end("weight").groupby("site")["source"].nunique()
    entropy = run.at_end("entropy").groupby("site")["value"].mean()
    number = number[number > 1]
    known = entropy.loc[entropy.index.intersection(number.index)]
    return known / number.loc[known.index].map(math.log)
