"""results/<study>/plan.json: which runs a study consists of, and how fast its arms train side by side.

Written by sweeps (or an import), read by analysis. The throughput ratios stand here, not among the
runs, because they belong to the planned shapes and not to any one run.
"""

from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from attnres.errors import UserError
from attnres.files import write_json

PLAN_FILE = "plan.json"

Role = Literal["ladder", "rate", "null", "overhead_only", "trunk"]
"""ladder: enters the laws. rate: a cell of a learning-rate sweep. null: the baseline with other
seeds, compared with itself. overhead_only: an arm that costs compute and changes nothing. trunk: trains
the steps that other cells have in common, and enters nothing."""


LADDER_ROLES: tuple[Role, ...] = ("ladder", "overhead_only")
"""Roles of the runs that enter the laws and the headline."""


class PlanCell(BaseModel):
    """One planned run."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    spec_id: str = Field(min_length=1)
    """identity of the run: content hash of its spec"""
    pair_id: str = Field(min_length=1)
    """equal for the arms of one pair: same size, budget, seed and rate"""
    variant: str = Field(min_length=1)
    """arm: label of the stream with its options"""
    stream: str
    """residual stream"""
    stream_options: str
    """its options, canonical JSON"""
    size: str = Field(min_length=1)
    """size of the model, as the grid names it"""
    params: int | None = Field(gt=0)
    """all parameters of the baseline of this size; null where imported runs do not say"""
    budget: float = Field(gt=0, allow_inf_nan=False)
    """nominal FLOPs of the baseline"""
    tokens: int = Field(gt=0)
    """training tokens"""
    seed: int
    """seed of the initial parameters"""
    lr: float = Field(gt=0, allow_inf_nan=False)
    """peak learning rate"""
    role: Role = "ladder"
    """ladder: enters the laws; rate: of a learning-rate sweep; null, overhead_only: controls; trunk: the
    steps that others have in common"""
    parent_id: str = ""
    """spec_id of the trunk whose steps the run shares; empty for a run of its own"""


class Throughput(BaseModel):
    """Training tokens a second of an arm over the baseline's: same shape, interleaved in one process."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    size: str = Field(min_length=1)
    """size of the model, as in the cells"""
    variant: str = Field(min_length=1)
    """arm"""
    baseline: str = Field(min_length=1)
    """arm it is compared with"""
    spec_ids: tuple[str, str]
    """the cells whose training step was timed: the baseline's, the variant's"""
    ratio: float = Field(gt=0, allow_inf_nan=False)
    """median over rounds of the variant's tokens a second over the baseline's"""
    lo: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """lower end of its 95 % interval"""
    hi: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """upper end of its 95 % interval"""
    rounds: int = Field(gt=0)
    """times each arm's step was timed"""
    machine: str
    """what it was measured on"""


class Plan(BaseModel):
    """The planned runs of a study."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = 1
    grid: str
    study: str
    description: str = ""
    baseline: str
    """Variant label of the arm the others are compared with."""
    arms: tuple[str, ...] = Field(min_length=1)
    numerics: int
    cells: tuple[PlanCell, ...]
    throughput: tuple[Throughput, ...] = ()
    """Empty until the cells are trained; without it the wall-clock axis is refused."""

    @model_validator(mode="after")
    def _check(self) -> "Plan":
        if self.schema_version != 1:
            raise ValueError(f"schema_version {self.schema_version} is not 1")
        if self.baseline not in self.arms:
            raise ValueError(f"baseline '{self.baseline}' is none of the arms {', '.join(self.arms)}")
        if len(self.by_spec) != len(self.cells):
            raise ValueError("two cells have the same spec_id")
        if len({(row.size, row.variant, row.baseline) for row in self.throughput}) != len(self.throughput):
            raise ValueError("two throughput ratios of the same size and arm")
        return self

    @cached_property
    def by_spec(self) -> dict[str, PlanCell]:
        """Cells by spec_id."""
        return {cell.spec_id: cell for cell in self.cells}


def read_plan(folder: Path) -> Plan:
    """The plan of the study in ``folder``.

    Raises:
        UserError: there is none, or it breaks the contract; one line that names file and field.
    """
    path = folder / PLAN_FILE
    if not path.exists():
        raise UserError(f"{path}: no such file; a sweep writes it (make sweep), or an import does")
    advice = "restore the file, or delete it: a sweep (make plan) or an import writes it anew"
    try:
        return Plan.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {advice}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: {where + ': ' if where else ''}{first['msg']}; {advice}") from error


def write_plan(folder: Path, plan: Plan) -> None:
    """Write ``plan`` into the study ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN_FILE, plan.model_dump(mode="json"))
