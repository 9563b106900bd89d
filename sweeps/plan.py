"""The dry run: what a grid would train, what is done, what it would cost; and plan.json."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from analysis.plan_file import PLAN_FILE, Throughput, read_plan
from attnres.accounting import flops_per_token
from attnres.errors import UserError
from attnres.files import write_json
from experiments.record import RunRecord, RunStatus, read_record
from experiments.run_folder import is_running
from experiments.spec import NUMERICS
from sweeps.grid import Cell, Grid
from sweeps.slurm_queue import QueuedJob
from sweeps.trunks import lacks

PLAN_SCHEMA_VERSION = 1
FALLBACK_FLOPS_PER_SECOND = 2e10
"""Guess for one CPU thread and a small model, where no run of the machine tells better."""


class CellState(StrEnum):
    """What the record (or its absence) says about a planned cell."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RUNNING = "running"
    QUEUED = "queued"
    """A scheduler holds a job for it that is not at work."""
    STARTED = "started"
    """Has a folder but no record and no process: killed; the next sweep continues it."""
    MISSING = "missing"
    DAMAGED = "damaged"
    """A file of its folder cannot be read: not trained over and not counted, for a person to decide."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell with its state and its expected cost."""

    cell: Cell
    state: CellState
    record: RunRecord | None
    seconds: float
    """Expected or measured training time."""
    lacking: bool = False
    """Of a finished trunk: an unfinished branch cannot start from what it left."""
    problem: str = ""
    """Of a damaged cell: which file, and what to do; of one in a scheduler's queue: its job."""

    @property
    def done(self) -> bool:
        """Nothing is left to train: a diverged run would only diverge again."""
        return self.state in (CellState.FINISHED, CellState.DIVERGED) and not self.lacking

    @property
    def to_train(self) -> bool:
        """A sweep starts it."""
        return not self.done and self.state is not CellState.DAMAGED


def state_of(run_dir: Path) -> tuple[CellState, RunRecord | None, str]:
    """State of the run in ``run_dir``, its record, and what is wrong with it.

    Its lock decides whether it runs, its record whether it is done.
    """
    if not run_dir.exists():
        return CellState.MISSING, None, ""
    try:
        if is_running(run_dir):
            return CellState.RUNNING, None, ""
        record = read_record(run_dir)
    except UserError as error:
        return CellState.DAMAGED, None, str(error)
    if record is None:
        return CellState.STARTED, None, ""
    return CellState(record.status.value), record, ""


def make_plan(grid: Grid, runs: Path) -> list[PlannedCell]:
    """Every cell with its state; expected times from the runs that this machine has finished."""
    states = [(cell, *state_of(runs / cell.spec.spec_id)) for cell in grid.cells]
    speeds = _speeds([record for _, _, record, _ in states if record is not None])
    plan = [
        PlannedCell(
            cell,
            state,
            record,
            record.wall_seconds
            if record is not None and record.status is RunStatus.FINISHED
            else cell.trained() / speeds.get(cell.size, speeds["any"]),
            problem=problem,
        )
        for cell, state, record, problem in states
    ]
    unfinished = [item.cell for item in plan if item.to_train and item.cell.parent_id]
    return [_with_lacking(item, unfinished, runs) for item in plan]


def _with_lacking(item: PlannedCell, unfinished: Sequence[Cell], runs: Path) -> PlannedCell:
    """A finished trunk that left too little for its ``unfinished`` branches is to be trained again."""
    if item.cell.role != "trunk" or item.state is not CellState.FINISHED:
        return item
    try:
        return replace(item, lacking=lacks(item.cell, unfinished, runs))
    except UserError as error:
        return replace(item, state=CellState.DAMAGED, problem=str(error))


def with_queue(plan: Sequence[PlannedCell], queue: Mapping[str, QueuedJob]) -> list[PlannedCell]:
    """``plan`` with the cells that have a job in Slurm's queue (by spec_id) as queued or running."""
    return [_in_queue(item, queue.get(item.cell.spec.spec_id)) for item in plan]


def _in_queue(item: PlannedCell, job: QueuedJob | None) -> PlannedCell:
    if job is None or not item.to_train:
        return item
    waiting = job.waiting and item.state is not CellState.RUNNING
    return replace(item, state=CellState.QUEUED if waiting else CellState.RUNNING, problem=str(job))


def _speeds(records: list[RunRecord]) -> dict[str, float]:
    """FLOP/s reached, by size; ``any`` is the mean, or the fallback."""
    speeds: dict[str, list[float]] = {}
    for record in records:
        if record.status is RunStatus.FINISHED and record.wall_seconds > 0:
            speeds.setdefault(f"d{record.depth}w{record.width}", []).append(
                record.compute / record.wall_seconds
            )
    means = {size: sum(values) / len(values) for size, values in speeds.items()}
    means["any"] = sum(means.values()) / len(means) if means else FALLBACK_FLOPS_PER_SECOND
    return means


def write_plan(grid: Grid, study: Path, throughput: Sequence[Throughput] | None = None) -> None:
    """Write ``study``/plan.json: the cells that analysis counts against.

    Args:
        throughput: ratios to write; None keeps those that stand there and still belong to ``grid``.
    """
    kept = read_throughput(grid, study) if throughput is None else throughput
    study.mkdir(parents=True, exist_ok=True)
    write_json(study / PLAN_FILE, plan_document(grid, kept))


def read_throughput(grid: Grid, study: Path) -> list[Throughput]:
    """Ratios in ``study``/plan.json of cells that ``grid`` has: a changed shape is measured again.

    Raises:
        UserError: plan.json breaks its contract.
    """
    if not (study / PLAN_FILE).exists():
        return []
    plan = read_plan(study)
    planned = {cell.spec.spec_id for cell in grid.cells}
    return [row for row in plan.throughput if planned.issuperset(row.spec_ids)]


def plan_document(grid: Grid, throughput: Sequence[Throughput] = ()) -> dict[str, Any]:
    """The plan as plain data: no state, no time, the same bytes for the same grid and ratios."""
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "grid": grid.name,
        "study": grid.name,
        "description": grid.description,
        "baseline": grid.baseline,
        "arms": [arm.variant for arm in grid.arms],
        "numerics": NUMERICS,
        "cells": [_cell_document(cell) for cell in grid.cells],
        "throughput": [row.model_dump(mode="json") for row in throughput],
    }


def _cell_document(cell: Cell) -> dict[str, Any]:
    spec = cell.spec
    flops = flops_per_token(spec.shape, spec.stream)
    return {
        "spec_id": spec.spec_id,
        "pair_id": spec.pair_id,
        "variant": spec.stream.variant,
        "stream": spec.stream.name,
        "stream_options": json.dumps(spec.stream.options, sort_keys=True, separators=(",", ":")),
        "size": cell.size,
        "params": cell.params,
        "budget": spec.budget,
        "compute": flops.total * spec.tokens,
        "tokens": spec.tokens,
        "seed": spec.seed,
        "lr": spec.train.lr,
        "role": cell.role,
        "parent_id": cell.parent_id,
    }
