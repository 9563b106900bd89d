"""A grid: the planned runs of a study, paired by construction."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from attnres.accounting import count_parameters, flops_per_token
from attnres.errors import UserError, one_line
from attnres.initialise import build
from attnres.registry import Registry
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from experiments.data.base import DATASETS
from experiments.recipes.base import RECIPES
from experiments.spec import RunSpec

Role = Literal["ladder", "rate", "null", "overhead_only"]
"""What a cell is for: the law, a learning-rate sweep, a control."""

ADDITIVE = StreamSpec(name="additive")


@dataclass(frozen=True)
class Cell:
    """One planned run and what it is for."""

    spec: RunSpec
    role: Role
    params: int
    """Unique parameters of the baseline arm at this size."""

    @property
    def size(self) -> str:
        """Label of the shape: ``d6w48`` is depth 6, width 48."""
        return f"d{self.spec.shape.depth}w{self.spec.shape.width}"

    @property
    def label(self) -> str:
        """The cell for people; nothing is ever parsed out of it."""
        return f"{self.spec.stream.variant} {self.size} seed {self.spec.seed} lr {self.spec.train.lr:g}"

    @property
    def compute(self) -> float:
        """Training FLOPs of this arm."""
        return flops_per_token(self.spec.shape, self.spec.stream).total * self.spec.tokens


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


GRIDS: Registry[Callable[[], Grid]] = Registry("grid", "sweeps.grids")


def pairs(
    rung: Rung, *, arms: Sequence[StreamSpec], dataset: str, recipe: str, role: Role = "ladder"
) -> list[Cell]:
    """The cells of one rung: for every seed, one run of every arm, equal in all but the stream.

    ``tokens = tokens_per_param x parameters`` of the baseline, rounded to whole batches; the budget is
    the baseline's FLOPs for them. Seeds of a rung change the initial parameters and the data order.
    """
    DATASETS.get(dataset)
    shape = rung.shape
    params = count_parameters(build(shape, ADDITIVE, seed=0, device="meta")).total
    train, tokens = RECIPES.get(recipe).train(
        params=params, tokens=rung.tokens_per_param * params, lr=rung.lr
    )
    budget = flops_per_token(shape, ADDITIVE).total * tokens
    cells = []
    for seed in rung.seeds:
        spec = RunSpec(
            shape=shape,
            stream=ADDITIVE,
            dataset=dataset,
            seed=seed,
            data_seed=seed,
            budget=float(f"{budget:.6g}"),
            tokens=tokens,
            train=train,
        )
        cells += [Cell(spec.model_copy(update={"stream": arm}), role, params) for arm in arms]
    return cells


def load_grid(name: str) -> Grid:
    """The registered grid ``name``, or the one that the file ``name`` (ending in .py) registers.

    Raises:
        UserError: unknown grid, a file without one, or a grid that cannot be expanded.
    """
    if name.endswith(".py"):
        name = _import_grid(Path(name))
    make = GRIDS.get(name)
    try:
        grid = make()
    except ValidationError as error:
        raise UserError(f"grid '{name}': {one_line(error)}") from error
    _check(grid)
    return grid


def _import_grid(path: Path) -> str:
    if not path.exists():
        raise UserError(f"{path}: no such file; name a grid ({', '.join(GRIDS.names())}) or a Python file")
    before = set(GRIDS.names())
    module_spec = importlib.util.spec_from_file_location(f"grid_{path.stem}", path)
    assert module_spec is not None and module_spec.loader is not None
    module_spec.loader.exec_module(importlib.util.module_from_spec(module_spec))
    added = set(GRIDS.names()) - before
    if len(added) != 1:
        raise UserError(
            f"{path}: registers {len(added)} new grids; it must register exactly one with @GRIDS.register"
        )
    return added.pop()


def _check(grid: Grid) -> None:
    ids = [cell.spec.spec_id for cell in grid.cells]
    if not ids:
        raise UserError(f"grid '{grid.name}': has no cells; add at least one rung")
    if len(set(ids)) != len(ids):
        twice = next(cell.label for cell in grid.cells if ids.count(cell.spec.spec_id) > 1)
        raise UserError(f"grid '{grid.name}': plans the same run twice ({twice}); remove one")
