"""A grid: the planned runs of a study, paired by construction."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from attnres.accounting import flops_per_token, parameters_of
from attnres.errors import UserError
from attnres.registry import Registry
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from attnres.streams.base import STREAMS
from experiments.data.base import DATASETS
from experiments.feasibility import check_feasible
from experiments.recipes.base import RECIPES
from experiments.spec import RunSpec
from sweeps.grid_file import execute_file, told_with_line

Role = Literal["ladder", "rate", "null", "overhead_only", "trunk"]
"""What a cell is for: the law, a learning-rate sweep, a control, the steps that others have in common."""

ADDITIVE = StreamSpec(name="additive")


@dataclass(frozen=True)
class Cell:
    """One planned run and what it is for."""

    spec: RunSpec
    role: Role
    params: int
    """Unique parameters of the baseline arm at this size."""
    parent_id: str = ""
    """spec_id of the trunk that it branches from; empty for a run of its own."""

    @property
    def size(self) -> str:
        """Label of the shape: ``d6w48`` is depth 6, width 48."""
        return f"d{self.spec.shape.depth}w{self.spec.shape.width}"

    @property
    def label(self) -> str:
        """The cell for people; nothing is ever parsed out of it."""
        text = f"{self.spec.stream.variant} {self.size} seed {self.spec.seed} lr {self.spec.train.lr:g}"
        if self.role == "trunk":
            return f"trunk of {text}"
        return f"{text} steps {self.spec.steps}" if self.parent_id else text

    @property
    def compute(self) -> float:
        """Training FLOPs of this arm."""
        return flops_per_token(self.spec.shape, self.spec.stream).total * self.spec.tokens

    @property
    def first_step(self) -> int:
        """Steps that its trunk trains for it; 0 for a run of its own."""
        return self.spec.stable_steps if self.parent_id else 0

    def trained(self, step: int | None = None) -> float:
        """FLOPs that the cell itself trains until ``step`` (its end): of a branch, only the cooldown's."""
        done = (self.spec.steps if step is None else step) - self.first_step
        return self.compute * max(done, 0) / self.spec.steps


@dataclass(frozen=True)
class Grid:
    """Named cells; the name groups runs and is not part of any run's identity."""

    name: str
    description: str
    arms: tuple[StreamSpec, ...]
    """The first is the baseline."""
    cells: tuple[Cell, ...]

    @property
    def baseline(self) -> str:
        """Variant label of the baseline arm."""
        return self.arms[0].variant


@dataclass(frozen=True)
class Rung:
    """One size of a ladder: its shape, its tokens a parameter, its seeds."""

    shape: ModelShape
    tokens_per_param: float
    seeds: tuple[int, ...] = (0,)
    lr: float | None = None
    """A learning rate in place of the recipe's."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tokens_per_param) and self.tokens_per_param > 0):
            raise UserError(f"tokens_per_param {self.tokens_per_param}: must be a number above 0, such as 20")
        if not self.seeds:
            raise UserError("seeds: a rung needs at least one, such as (0,)")


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

GRIDS: Registry[Callable[[], Grid]] = Registry("grid", "sweeps.grids")


def pairs(
    rung: Rung, *, arms: Sequence[StreamSpec], dataset: str, recipe: str, role: Role = "ladder"
) -> list[Cell]:
    """The cells of one rung: for every seed, one run of every arm, equal in all but the stream.

    ``tokens = tokens_per_param x parameters`` of the baseline, rounded to whole batches; the budget is
    the baseline's FLOPs for them. Seeds of a rung change the initial parameters and the data order. On the
    ladder, an arm that computes what the baseline computes (`overhead_only`) gets that role.
    """
    params = baseline_params(rung.shape)
    cells = []
    for seed in rung.seeds:
        spec = baseline_spec(rung, seed, dataset=dataset, recipe=recipe)
        cells += [Cell(spec.model_copy(update={"stream": arm}), role_of(arm, role), params) for arm in arms]
    return cells


def baseline_params(shape: ModelShape) -> int:
    """Unique parameters of the baseline arm."""
    return parameters_of(shape, ADDITIVE).total


def baseline_spec(rung: Rung, seed: int, *, dataset: str, recipe: str) -> RunSpec:
    """The baseline's run of ``rung`` at ``seed``; its pairs differ in the stream alone."""
    DATASETS.get(dataset)
    shape, params = rung.shape, baseline_params(rung.shape)
    train, tokens = RECIPES.get(recipe).train(
        params=params, tokens=rung.tokens_per_param * params, lr=rung.lr
    )
    budget = flops_per_token(shape, ADDITIVE).total * tokens
    return RunSpec(
        shape=shape,
        stream=ADDITIVE,
        dataset=dataset,
        seed=seed,
        data_seed=seed,
        budget=float(f"{budget:.6g}"),
        tokens=tokens,
        train=train,
    )


def role_of(arm: StreamSpec, role: Role) -> Role:
    """``role``, or ``overhead_only`` for an arm of the ladder that computes what the baseline computes."""
    control = arm != ADDITIVE and STREAMS.get(arm.name).laws.equals_additive
    return "overhead_only" if control and role == "ladder" else role


def load_grid(name: str) -> Grid:
    """The registered grid ``name``, or the one that the file ``name`` (ending in .py) registers.

    Every cell has been checked: what is impossible is refused here, before anything is written.

    Raises:
        UserError: unknown grid, a file without one, or a grid that cannot be expanded or trained.
    """
    what = f"grid '{name}'"
    if name.endswith(".py"):
        path, name = name, _import_grid(Path(name))
        what = f"{path}: grid '{name}'"
    grid = told_with_line(what, GRIDS.get(name))
    _check(grid, name, what)
    return grid


def _import_grid(path: Path) -> str:
    if not path.exists():
        raise UserError(f"{path}: no such file; name a grid ({', '.join(GRIDS.names())}) or a Python file")
    before, streams, data_sets = set(GRIDS.names()), STREAMS.names(), DATASETS.names()
    execute_file(path)
    added = set(GRIDS.names()) - before
    for kind, known, now, place in (
        ("stream", streams, STREAMS.names(), "attnres/streams"),
        ("data set", data_sets, DATASETS.names(), "experiments/data"),
    ):
        if unseen := sorted(set(now) - set(known)):
            raise UserError(
                f"{path}: registers {kind} '{unseen[0]}', which the processes that train cells would not "
                f"know; register it in a file of its own in {place}"
            )
    if len(added) != 1:
        raise UserError(
            f"{path}: registers {len(added)} new grids; it must register exactly one with @GRIDS.register"
        )
    return added.pop()


def _check(grid: Grid, name: str, what: str) -> None:
    """Refuse a grid of which some cell could only fail, or whose results would lie in another's place."""
    _check_types(grid, what)
    if grid.name != name:
        raise UserError(f"{what}: calls itself {grid.name!r}, where its results would lie; use one name")
    if not _NAME.fullmatch(name):
        raise UserError(f"{what}: names a folder of results; use letters, digits, '_', '-' and '.'")
    if not grid.cells:
        raise UserError(f"{what}: has no cells; add at least one rung")
    ids = set()
    for cell in grid.cells:
        if cell.spec.spec_id in ids:
            raise UserError(f"{what}: plans the same run twice ({cell.label}); remove one")
        ids.add(cell.spec.spec_id)
    for cell in grid.cells:
        if cell.parent_id and cell.parent_id not in ids:
            raise UserError(
                f"{what}: {cell.label} branches from trunk {cell.parent_id}, which is not planned"
            )
    for spec in {(c.spec.shape, c.spec.stream.variant, c.spec.dataset): c.spec for c in grid.cells}.values():
        try:
            check_feasible(spec)
        except UserError as error:
            raise UserError(f"{what}: {error}") from error


def _check_types(grid: object, what: str) -> None:
    """A person's function may return anything."""
    if not isinstance(grid, Grid):
        raise UserError(f"{what}: its function returns {type(grid).__name__}, not a Grid")
    if not grid.arms or not all(isinstance(arm, StreamSpec) for arm in grid.arms):
        raise UserError(f"{what}: arms must be StreamSpecs, the baseline first")
    for cell in grid.cells:
        if not isinstance(cell, Cell) or not isinstance(cell.spec, RunSpec):
            raise UserError(f"{what}: has {cell!r:.60} among its cells; `pairs` makes cells")
        if cell.role not in get_args(Role):
            raise UserError(f"{what}: unknown role {cell.role!r}: known are {', '.join(get_args(Role))}")
        if cell.spec.stream not in grid.arms:
            raise UserError(f"{what}: cell {cell.label} is of none of its arms; add the arm")
