"""Cells that share trunks: one run trains what the budgets of a (shape, stream, seed) have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.errors import UserError
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from experiments.checkpoint import CHECKPOINTS
from experiments.settings import Branch, Settings
from experiments.trunk import first_lacking, has_branch_point, trunk_of
from sweeps.grid import Cell, Rung, baseline_params, baseline_spec, role_of


@dataclass(frozen=True)
class BranchedRung:
    """One shape at several budgets: tokens a parameter of each, all from one trunk a seed and arm."""

    shape: ModelShape
    tokens_per_param: tuple[float, ...]
    seeds: tuple[int, ...] = (0,)
    lr: float | None = None
    """A learning rate in place of the recipe's."""

    def __post_init__(self) -> None:
        if len(set(self.tokens_per_param)) != len(self.tokens_per_param) or not self.tokens_per_param:
            raise UserError(
                f"tokens_per_param {self.tokens_per_param}: different numbers, such as (5, 10, 20)"
            )

    def rungs(self) -> list[Rung]:
        """Its budgets as rungs of a ladder."""
        return [Rung(self.shape, tokens, self.seeds, self.lr) for tokens in self.tokens_per_param]


def branched_pairs(
    rung: BranchedRung, *, arms: Sequence[StreamSpec], dataset: str, recipe: str
) -> list[Cell]:
    """For every seed and arm a trunk (role ``trunk``) and one branch a budget, on the ladder.

    Branches of one budget and seed are equal in all but the stream, and so are their trunks.

    Args:
        rung: the shape and its budgets.
        arms: the baseline first.
        dataset: by name.
        recipe: one of schedule wsd whose numbers before the cooldown do not depend on the tokens.
    """
    params = baseline_params(rung.shape)
    cells = []
    for seed in rung.seeds:
        specs = [baseline_spec(one, seed, dataset=dataset, recipe=recipe) for one in rung.rungs()]
        for arm in arms:
            branches = [spec.model_copy(update={"stream": arm}) for spec in specs]
            trunk = trunk_of(branches)
            cells.append(Cell(trunk, "trunk", params))
            cells += [Cell(spec, role_of(arm, "ladder"), params, trunk.spec_id) for spec in branches]
    return cells


def cell_settings(cell: Cell, cells: Sequence[Cell], settings: Settings) -> Settings:
    """Settings of ``cell`` in a sweep that trains ``cells``: its trunk, or those that branch from it."""
    spec_id = cell.spec.spec_id
    branches = tuple(
        Branch(spec_id=other.spec.spec_id, step=other.first_step, steps=other.spec.steps)
        for other in cells
        if other.parent_id == spec_id
    )
    return settings.model_copy(update={"parent": cell.parent_id, "branches": branches})


def chain(cell: Cell, cells: Sequence[Cell]) -> float:
    """FLOPs from the start of ``cell`` to the end of the longest of ``cells`` that wait for it."""
    spec_id = cell.spec.spec_id
    after = [other.trained() for other in cells if other.parent_id == spec_id]
    return cell.trained() + max(after, default=0.0)


def without_trunk(cell: Cell, runs: Path) -> str:
    """Why a branch whose trunk has ended cannot start; empty if it can, or needs no trunk (any more)."""
    own = any((runs / cell.spec.spec_id / CHECKPOINTS).glob("step-*.ckpt"))
    if not cell.parent_id or own or has_branch_point(runs / cell.parent_id, cell.first_step):
        return ""
    return f"trunk {cell.parent_id} failed: it left no checkpoint of step {cell.first_step}"


def lacks(trunk: Cell, unfinished: Sequence[Cell], runs: Path) -> bool:
    """Whether a finished trunk must train again (a part) for those of ``unfinished`` that branch from it.

    Raises:
        UserError: a file of the trunk is damaged.
    """
    own = [cell for cell in unfinished if cell.parent_id == trunk.spec.spec_id and without_trunk(cell, runs)]
    settings = cell_settings(trunk, own, Settings())
    return first_lacking(runs / trunk.spec.spec_id, settings, settings.branches) is not None


@dataclass(frozen=True)
class Saving:
    """FLOPs of trunks and cooldowns, and of as many runs that train alone."""

    trunks: int
    branches: int
    trained: float
    separate: float

    @property
    def share(self) -> float:
        """Of the separate runs' FLOPs."""
        return 1 - self.trained / self.separate


def saving(cells: Sequence[Cell]) -> Saving | None:
    """What trunks save over one separate run a budget; None where no cell has a trunk."""
    branches = [cell for cell in cells if cell.parent_id]
    parents = {cell.parent_id for cell in branches}
    trunks = [cell for cell in cells if cell.spec.spec_id in parents]
    if not branches:
        return None
    return Saving(
        len(trunks),
        len(branches),
        sum(cell.trained() for cell in (*trunks, *branches)),
        sum(cell.compute for cell in branches),
    )
