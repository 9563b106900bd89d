"""Trunks and branches: the steps that several budgets have in common, trained once.

A trunk is a run of its own (constant rate after warm-up). A branch is a run of schedule wsd whose stable
steps the trunk has trained: it starts from the trunk's checkpoint at its branch point and ends bit for bit as
if it had trained from step 1 (`experiments.branch`). Who branches is operational: it is in `Settings`, never
in a spec. A trunk's folder remembers all that it was ever asked for (branches.json).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnres.errors import UserError
from attnres.files import write_json
from attnres.frozen import Frozen
from attnres.json_files import read_model
from experiments.checkpoint import (
    BRANCH_POINTS,
    CHECKPOINTS,
    LoadedCheckpoint,
    drop_checkpoints,
    intact_checkpoint,
    load_latest,
)
from experiments.dynamics import DYNAMICS_FILE, probe_steps, read_dynamics
from experiments.history import METRICS_FILE, read_rows
from experiments.record import RunRecord, read_record
from experiments.settings import Branch, Settings
from experiments.spec import RunSpec
from experiments.validation import evaluation_steps

BRANCHES_FILE = "branches.json"


class _Branches(Frozen):
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Agenda:
    """Steps of a run at which more is done than training."""

    evaluations: frozenset[int]
    probes: frozenset[int]
    branch_points: frozenset[int]
    """Checkpoints that are kept."""


def trunk_of(branches: Sequence[RunSpec]) -> RunSpec:
    """The run that trains what ``branches`` have in common, up to the last of their branch points.

    Raises:
        UserError: they are not of schedule wsd, or differ in more than their length.
    """
    longest = max(branches, key=lambda spec: spec.stable_steps)
    for spec in branches:
        if spec.train.schedule != "wsd":
            raise UserError(
                f"recipe {spec.train.recipe}: schedule {spec.train.schedule} has no trunk; use a wsd recipe"
            )
        if difference := difference_of(spec, longest):
            raise UserError(
                f"recipe {spec.train.recipe}: {difference} differs between budgets of one size, so that no "
                "trunk can serve them; it may depend on the parameters only"
            )
    fields = longest.model_dump()
    fields["tokens"] = longest.stable_steps * longest.train.batch_tokens
    fields["budget"] = float(f"{longest.budget * fields['tokens'] / longest.tokens:.6g}")
    fields["train"] |= {"schedule": "constant", "cooldown": None, "lr_floor": 1.0}
    return RunSpec.model_validate(fields)


def difference_of(one: RunSpec, other: RunSpec) -> str:
    """The first field, schedule and length apart, in which two runs differ; empty if they share steps."""
    left, right = _shared_fields(one), _shared_fields(other)
    return next((name for name in left if left[name] != right[name]), "")


def _shared_fields(spec: RunSpec) -> dict[str, Any]:
    fields = spec.model_dump(exclude={"tokens", "budget"})
    train: dict[str, Any] = fields.pop("train")
    return fields | {
        name: value for name, value in train.items() if name not in ("schedule", "cooldown", "lr_floor")
    }


def check_branches(spec: RunSpec, branches: Collection[Branch]) -> None:
    """Refuse (``UserError``) branches that ``spec`` cannot be the trunk of."""
    if branches and spec.train.schedule != "constant":
        raise UserError(f"run {spec.spec_id}: schedule {spec.train.schedule} is no trunk's; only constant is")
    for branch in branches:
        if branch.step > spec.steps:
            raise UserError(
                f"run {spec.spec_id}: ends at step {spec.steps}, before the branch point {branch.step} of "
                f"{branch.spec_id}"
            )


def agenda_of(spec: RunSpec, settings: Settings, branches: Collection[Branch] = ()) -> Agenda:
    """A run's own steps; of a trunk, those that its ``branches`` will call theirs, and its end."""
    if not branches:
        return Agenda(
            frozenset(evaluation_steps(spec.steps, settings.evaluations)),
            frozenset(probe_steps(spec.steps, settings.probes)),
            frozenset(),
        )
    wanted = [_wanted(branch, settings) for branch in branches]
    return Agenda(
        frozenset({spec.steps}.union(*(evaluations for evaluations, _ in wanted))),
        frozenset().union(*(probes for _, probes in wanted)),
        frozenset(branch.step for branch in branches),
    )


def _wanted(branch: Branch, settings: Settings) -> tuple[set[int], set[int]]:
    """Evaluations and probes of a branch up to its branch point."""
    evaluations = evaluation_steps(branch.steps, settings.evaluations)
    probes = probe_steps(branch.steps, settings.probes)
    return {s for s in evaluations if s <= branch.step}, {s for s in probes if s <= branch.step}


def branches_of(run_dir: Path, asked: Collection[Branch] = ()) -> tuple[Branch, ...]:
    """Branches that the trunk in ``run_dir`` was ever asked for, and those ``asked`` for now.

    Raises:
        UserError: the file that remembers them is damaged.
    """
    path = run_dir / BRANCHES_FILE
    known: tuple[Branch, ...] = ()
    if path.exists():
        known = read_model(path, _Branches, "delete it: the same sweep writes it anew").branches
    return tuple(sorted({*known, *asked}, key=lambda branch: (branch.step, branch.spec_id)))


def remember_branches(run_dir: Path, branches: Sequence[Branch]) -> None:
    """Write ``branches`` down in the trunk's folder, if there are any."""
    if branches:
        write_json(run_dir / BRANCHES_FILE, {"branches": [branch.model_dump() for branch in branches]})


def unfinished(run_dir: Path, branches: Collection[Branch]) -> list[Branch]:
    """Those of ``branches`` of the trunk in ``run_dir`` that will still be trained."""
    records = ((branch, read_record(run_dir.parent / branch.spec_id)) for branch in branches)
    return [branch for branch, record in records if record is None or not record.status.done]


def needed_checkpoints(run_dir: Path) -> set[Path]:
    """Checkpoints in ``run_dir`` from which an unfinished branch will start: none may be deleted.

    Raises:
        UserError: the trunk's list of branches or a branch's record is damaged.
    """
    points = {branch.step for branch in unfinished(run_dir, branches_of(run_dir))}
    paths = (intact_checkpoint(run_dir / BRANCH_POINTS, step) for step in points)
    return {path for path in paths if path is not None}


def has_branch_point(run_dir: Path, step: int) -> bool:
    """Whether the trunk in ``run_dir`` has an intact checkpoint for branches at ``step``."""
    return intact_checkpoint(run_dir / BRANCH_POINTS, step) is not None


def final_record(run_dir: Path, settings: Settings) -> RunRecord | None:
    """The record of a run that is not to be trained again: it finished or diverged.

    A trunk is to be trained again where its branches lack something of it.
    """
    record = read_record(run_dir)
    if record is None or not record.status.done:
        return None
    lacking = first_lacking(run_dir, settings, unfinished(run_dir, settings.branches))
    reached = lacking is None or (record.failed_at_step is not None and lacking >= record.failed_at_step)
    return record if reached else None


def first_lacking(run_dir: Path, settings: Settings, branches: Collection[Branch]) -> int | None:
    """The earliest step that a trunk must train (again) for ``branches``; None if it left all they need."""
    if not branches:
        return None
    rows = read_rows(run_dir / METRICS_FILE)
    evaluated = {row["step"] for row in rows if "val_loss" in row}
    probed = set(read_dynamics(run_dir / DYNAMICS_FILE))
    lacking: set[int] = set()
    for branch in branches:
        evaluations, probes = _wanted(branch, settings)
        lacking |= (evaluations - evaluated) | (probes - probed)
        if branch.step > len(rows) or not has_branch_point(run_dir, branch.step):
            lacking.add(branch.step)
    return min(lacking, default=None)


def load_trunk(
    run_dir: Path, settings: Settings, branches: Collection[Branch], tell: Callable[[str], None]
) -> LoadedCheckpoint | None:
    """The checkpoint that a trunk continues from: the newest before anything that its branches lack."""
    lacking = first_lacking(run_dir, settings, unfinished(run_dir, branches))
    last = len(read_rows(run_dir / METRICS_FILE))
    if lacking is not None:
        last = min(last, lacking - 1)
    drop_checkpoints(run_dir / CHECKPOINTS, after=last)
    return load_latest(run_dir / CHECKPOINTS, tell, beside=run_dir / BRANCH_POINTS, last=last)
