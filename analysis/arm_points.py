"""The points a law of one arm is fitted to: one a rung (size, budget), seeds averaged."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.clusters import Groups, linked
from analysis.compute_axes import EXACT, compute_on
from analysis.multipliers.base import Floats
from analysis.plan_file import LADDER_ROLES


@dataclass(frozen=True)
class ArmPoints:
    """Finished ladder runs of one arm; arrays have one entry a rung, by rising budget."""

    variant: str
    sizes: tuple[str, ...]
    budget: Floats
    compute: Floats
    params: Floats
    """All unique parameters of the arm."""
    tokens: Floats
    loss: Floats
    """Mean over seeds, nats a token."""
    num_seeds: Floats
    spec_ids: tuple[tuple[str, ...], ...]
    """Runs behind each point."""
    trunks: tuple[tuple[str, ...], ...]
    """Trunks that they share steps with."""

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def num_sizes(self) -> int:
        """Distinct sizes."""
        return len(set(self.sizes))

    @property
    def clusters(self) -> Groups:
        """Cluster of every point (`analysis.clusters`)."""
        return linked(self.trunks)

    @property
    def inputs(self) -> dict[str, Floats]:
        """Variables a form may ask for."""
        return {"compute": self.compute, "params": self.params, "tokens": self.tokens}

    @property
    def all_spec_ids(self) -> list[str]:
        """Runs behind all points."""
        return [spec_id for ids in self.spec_ids for spec_id in ids]

    def where(self, keep: np.ndarray) -> "ArmPoints":
        """The points at which ``keep`` is true."""
        chosen = np.flatnonzero(keep)
        return ArmPoints(
            variant=self.variant,
            sizes=tuple(self.sizes[i] for i in chosen),
            budget=self.budget[chosen],
            compute=self.compute[chosen],
            params=self.params[chosen],
            tokens=self.tokens[chosen],
            loss=self.loss[chosen],
            num_seeds=self.num_seeds[chosen],
            spec_ids=tuple(self.spec_ids[i] for i in chosen),
            trunks=tuple(self.trunks[i] for i in chosen),
        )


def points_of(cells: pd.DataFrame, variant: str, axis: str = EXACT) -> ArmPoints:
    """The points of ``variant``: finished runs of the ladder that no rule leaves out."""
    used = cells[
        (cells["variant"] == variant) & cells["role"].isin(LADDER_ROLES) & ~cells["excluded"].astype(bool)
    ]
    used = used.assign(
        axis_compute=compute_on(used, axis),
        all_params=used[["params_embedding", "params_decoder", "params_stream", "params_head"]].sum(axis=1),
    )
    groups = [runs.sort_values("seed") for _, runs in used.groupby(["budget", "size"], sort=True)]

    def first(column: str) -> Floats:
        return np.array([float(runs[column].iloc[0]) for runs in groups])

    return ArmPoints(
        variant=variant,
        sizes=tuple(str(runs["size"].iloc[0]) for runs in groups),
        budget=first("budget"),
        compute=first("axis_compute"),
        params=first("all_params"),
        tokens=first("tokens"),
        loss=np.array([float(runs["val_loss"].mean()) for runs in groups]),
        num_seeds=np.array([float(len(runs)) for runs in groups]),
        spec_ids=tuple(tuple(runs["spec_id"]) for runs in groups),
        trunks=tuple(tuple(runs["trunk"]) for runs in groups),
    )
