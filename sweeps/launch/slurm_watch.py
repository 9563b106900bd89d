"""Watching cells that Slurm trains: what the queue, the locks and the records say, until all have ended."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnres.errors import UserError
from experiments.cell import said_in_log
from experiments.history import last_row
from experiments.record import RunRecord
from experiments.run_folder import LOG_FILE
from experiments.settings import Settings
from sweeps.grid import Cell
from sweeps.launch.base import Ended, Note, Progress, Running, Show
from sweeps.plan import CellState, state_of
from sweeps.slurm_queue import JOB_PREFIX, SLURM_FOLDER, QueuedJob, read_queue

POLL_SECONDS = 5.0
"""Between two looks at the queue: squeue is a burden on a shared controller."""
WAKE_SECONDS = 0.2


class Watch:
    """Cells that have not ended yet."""

    def __init__(self, cells: Sequence[Cell], settings: Settings, show: Show) -> None:
        self.waiting = list(cells)
        self.total = len(cells)
        self.runs, self.show = settings.runs, show
        self.failed = 0
        self.stop_requested = False
        self._queue: Mapping[str, QueuedJob] = {}
        self._silent = False
        self._log_starts = {cell.spec.spec_id: self._log_size(cell) for cell in cells}

    def drop(self, cells: Sequence[Cell]) -> None:
        """Count ``cells``, which could not be submitted, as failed."""
        self.failed += len(cells)
        self.waiting = [cell for cell in self.waiting if cell not in cells]

    def wait(self, *, fail_fast: bool) -> bool:
        """Until every cell has ended: True; asked to stop before: False, the jobs stay in the queue."""
        while self.waiting and not self.stop_requested:
            if self._ask():
                for cell in list(self.waiting):
                    self._look(cell)
                if fail_fast and self.failed:
                    self._cancel_waiting()
                self.show(self._progress())
            self._sleep()
        if self.waiting:
            self._tell_left()
        return not self.waiting

    def _ask(self) -> bool:
        """Read the queue; a controller that does not answer for a while changes nothing."""
        try:
            self._queue = read_queue(self.runs)
        except UserError as error:
            if not self._silent:
                self.show(Note(f"{error}; the jobs go on, still watching"))
            self._silent = True
            return False
        self._silent = False
        return True

    def _look(self, cell: Cell) -> None:
        """After the queue was read: a job that has left it has written its last word."""
        state, record, problem = state_of(self.runs / cell.spec.spec_id)
        over = state in (CellState.FINISHED, CellState.DIVERGED, CellState.DAMAGED)
        if not over and (cell.spec.spec_id in self._queue or state is CellState.RUNNING):
            return
        self.waiting.remove(cell)
        if state is not CellState.FINISHED:
            self.failed += 1
        self.show(Ended(cell, *self._told(cell, state, record, problem)))

    def _told(self, cell: Cell, state: CellState, record: RunRecord | None, problem: str) -> tuple[str, str]:
        run_dir = self.runs / cell.spec.spec_id
        if record is not None and record.val_loss is not None:
            return state.value, (
                f"val_loss {record.val_loss:.4f}, {record.wall_seconds:.0f} s, attempts {record.attempts}"
            )
        if problem:
            return state.value, problem
        log = run_dir / LOG_FILE
        start = self._log_starts[cell.spec.spec_id]
        errors = said_in_log(run_dir, start, "error") if log.exists() else []
        told = errors[-1] if errors else "its job left the queue before the cell was done"
        where = log if self._log_size(cell) > start else self.runs / SLURM_FOLDER
        status = state.value if record is not None else "failed"
        return status, f"{told}; see {where}; the same command continues"

    def _cancel_waiting(self) -> None:
        """Take the cells that have not started out of the queue."""
        pending = [
            cell
            for cell in self.waiting
            if (job := self._queue.get(cell.spec.spec_id)) is not None and job.waiting
        ]
        if pending:
            ids = [self._queue[cell.spec.spec_id].job_id for cell in pending]
            subprocess.run(["scancel", "--state=PENDING", *ids], check=False, capture_output=True)
            self.waiting = [cell for cell in self.waiting if cell not in pending]
            self.total -= len(pending)
            self.show(Note(f"a cell failed: {len(pending)} cells were taken out of the queue"))

    def _tell_left(self) -> None:
        jobs = [self._queue.get(cell.spec.spec_id) for cell in self.waiting]
        names = sorted({JOB_PREFIX + job.batch for job in jobs if job is not None})
        ended_by = f"; `scancel --name={','.join(names)}` ends them" if names else ""
        self.show(
            Note(f"{len(self.waiting)} cells stay in the queue, the same command watches them{ended_by}")
        )

    def _progress(self) -> Progress:
        running, queued = [], 0
        for cell in self.waiting:
            job = self._queue.get(cell.spec.spec_id)
            if job is not None and job.waiting:
                queued += 1
                continue
            row = last_row(self.runs / cell.spec.spec_id)
            speed = row["tokens"] / row["seconds"] if row and row["seconds"] > 0 else None
            running.append(
                Running(cell, row["step"] if row else 0, row["train_loss"] if row else None, speed)
            )
        return Progress(self.total - len(self.waiting), self.failed, self.total, tuple(running), None, queued)

    def _log_size(self, cell: Cell) -> int:
        log: Path = self.runs / cell.spec.spec_id / LOG_FILE
        return log.stat().st_size if log.exists() else 0

    def _sleep(self) -> None:
        deadline = time.monotonic() + POLL_SECONDS
        while self.waiting and not self.stop_requested and time.monotonic() < deadline:
            time.sleep(WAKE_SECONDS)


def in_queue(task: str, runs: Path, show: Show) -> bool:
    """Whether the queue holds ``task``; True as well while it does not answer."""
    try:
        return task in read_queue(runs)
    except UserError as error:
        show(Note(f"{error}; still watching"))
        return True
