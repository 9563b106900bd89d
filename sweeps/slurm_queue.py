"""What Slurm's queue says about cells, from squeue alone: a site need not keep accounts.

Every array is a batch: a folder ``runs/slurm/<batch>/`` with its cells in the order of their tasks, written
before sbatch is called, and a job named ``attnres-<batch>``. So a name and a task number in the queue tell
the cell, however the process that submitted it ended.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.errors import UserError
from attnres.files import write_json
from attnres.frozen import Frozen
from attnres.json_files import read_model

SLURM_FOLDER = "slurm"
CELLS_FILE = "cells.json"
JOB_PREFIX = "attnres-"
SQUEUE_SECONDS = 60.0

WAITING = frozenset(
    [
        "PENDING",
        "CONFIGURING",
        "PREEMPTED",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
        "STOPPED",
        "SUSPENDED",
    ]
)
ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "REVOKED",
        "TIMEOUT",
    ]
)


@dataclass(frozen=True)
class QueuedJob:
    """The job of one cell, as squeue shows it."""

    job_id: str
    """``<array>_<task>``, or the job's own number."""
    batch: str
    state: str
    reason: str
    """Why it waits: ``Priority``, ``Resources``, ``BeginTime``."""

    @property
    def waiting(self) -> bool:
        """In the queue and not at work."""
        return self.state in WAITING

    def __str__(self) -> str:
        told = f", {self.reason}" if self.reason not in ("", "None", "(null)") else ""
        return f"job {self.job_id}: {self.state.lower()}{told}"


class _Batch(Frozen):
    """cells.json: runs by task number."""

    cells: tuple[str, ...]


def batches(runs: Path) -> dict[str, tuple[str, ...]]:
    """Cells (spec_ids by task number) of every batch submitted from ``runs``."""
    advice = "delete its folder once squeue shows no job of that name"
    return {
        path.parent.name: read_model(path, _Batch, advice).cells
        for path in sorted((runs / SLURM_FOLDER).glob(f"*/{CELLS_FILE}"))
    }


def write_batch(runs: Path, batch: str, cells: Sequence[str]) -> Path:
    """Note which task of ``batch`` is which cell; returns the batch's folder."""
    folder = runs / SLURM_FOLDER / batch
    folder.mkdir(parents=True)
    write_json(folder / CELLS_FILE, {"cells": list(cells)})
    return folder


def read_queue(runs: Path) -> dict[str, QueuedJob]:
    """Jobs in the queue by the cell (spec_id) that they train; squeue is asked only if there are batches.

    Raises:
        UserError: squeue is not here or does not answer.
    """
    known = batches(runs)
    if not known:
        return {}
    users = sorted({str((runs / SLURM_FOLDER / batch).stat().st_uid) for batch in known})
    jobs: dict[str, QueuedJob] = {}
    for line in _squeue(users).splitlines():
        name, task, job_id, state, reason = line.split("|", 4)
        batch = name.removeprefix(JOB_PREFIX)
        cells = known.get(batch, ())
        number = int(task) if task.isdigit() else 0  # an array of one is submitted as a plain job
        if name.startswith(JOB_PREFIX) and number < len(cells) and state not in ENDED:
            jobs.setdefault(cells[number], QueuedJob(job_id, batch, state, reason.strip()))
    return jobs


def _squeue(users: Sequence[str]) -> str:
    command = ["squeue", "--noheader", "--array", f"--user={','.join(users)}", "--format=%j|%K|%i|%T|%r"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SQUEUE_SECONDS)
    except FileNotFoundError:
        raise UserError("squeue: not found here: what is queued is not known; ask on the cluster") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"squeue: no answer in {SQUEUE_SECONDS:.0f} s; try again") from None
    if done.returncode != 0:
        raise UserError(f"squeue: {' '.join(done.stderr.split()) or 'failed'}; try again")
    return done.stdout
