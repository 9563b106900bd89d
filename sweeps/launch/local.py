"""Cells side by side on this machine, longest first; those of several processes take as many jobs."""

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from attnres.errors import UserError
from attnres.files import write_json
from attnres.json_files import reason
from experiments.attempts import Attempts, read_attempts
from experiments.cell import execute, said_in_log
from experiments.environment import find_device
from experiments.history import last_row
from experiments.record import read_record
from experiments.run_folder import LOG_FILE, SETTINGS_FILE, prepare_folder
from experiments.settings import Settings
from sweeps.grid import Cell
from sweeps.launch.base import (
    LAUNCHERS,
    Ended,
    Launcher,
    Progress,
    Retrying,
    Running,
    Show,
    Stopping,
    Warned,
    stop_on_signals,
)
from sweeps.launch.retry import Retries, attempt_end
from sweeps.plan import CellState, state_of
from sweeps.trunks import cell_settings, chain, without_trunk

POLL_SECONDS = 0.2
SHOW_SECONDS = 2.0
GRACE_SECONDS = 60.0
"""How long a stopped cell may take to write its checkpoint before it is killed."""
PRELOADED = ["experiments.run", "mlflow", "pandas", "pyarrow.parquet"]
"""Imported once by the server that cells fork from: eight seconds of imports per cell saved."""


@LAUNCHERS.register("local")
class LocalPool(Launcher):
    """A pool of ``jobs`` processes; cells of another launcher are waited for, never started twice."""

    def check(self, settings: Settings, *, jobs: int) -> None:
        """The devices must be here, and a cell fit; there is nothing to know of a site."""
        if self.site_file is not None:
            raise UserError(f"--site {self.site_file}: the local launcher has no site; add --launcher slurm")
        find_device(settings, settings.processes)
        if settings.processes > jobs:
            raise UserError(
                f"--processes {settings.processes}: a cell takes as many jobs; "
                f"set --jobs {settings.processes}, or fewer processes"
            )

    def launch(
        self,
        cells: Sequence[Cell],
        settings: Settings,
        *,
        jobs: int,
        retries: int,
        fail_fast: bool,
        show: Show,
    ) -> bool:
        """Execute ``cells``, the most expensive first."""
        pool = _Pool(cells, settings, show, Retries(retries))
        with stop_on_signals(pool):
            return pool.execute(jobs, fail_fast)


@dataclass(frozen=True)
class _Job:
    """A cell at work."""

    cell: Cell
    process: BaseProcess
    log_start: int
    """Where this attempt's part of the log begins."""
    attempts: Attempts
    """Starts before this one."""


class _Pool:
    def __init__(self, cells: Sequence[Cell], settings: Settings, show: Show, retries: Retries) -> None:
        self.cells = cells
        self.waiting = sorted(cells, key=lambda cell: -chain(cell, cells))
        self.settings, self.show, self.retries = settings, show, retries
        self.total = len(cells)
        self.running: dict[str, _Job] = {}
        self.failed = 0
        self.done_compute = 0.0
        self.stop_requested = False
        self.stopped = False
        self.context: Any = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        self.started = time.monotonic()
        self.resumed = {cell.spec.spec_id: self._trained(cell) for cell in cells}
        """FLOPs of earlier sweeps, by cell."""

    def execute(self, jobs: int, fail_fast: bool) -> bool:
        try:
            self._work(jobs, fail_fast)
        finally:
            if self.running:  # something was raised: nothing may outlive it
                self._stop()
        return not self.stopped or not self.waiting

    def _work(self, jobs: int, fail_fast: bool) -> None:
        shown = 0.0
        while self.running or (self.waiting and not self.stopped):
            while not self.stopped and self._has_room(jobs) and (cell := self._next()) is not None:
                self._try(cell, fail_fast)
            if self.stop_requested and not self.stopped:
                self._stop()
            self._collect(fail_fast)
            if not self.stopped and time.monotonic() - shown >= SHOW_SECONDS:
                shown = time.monotonic()
                self.show(self.progress())
            time.sleep(POLL_SECONDS)
            if self.waiting and not self.running and self._all_elsewhere():
                self._give_up_waiting()

    def _has_room(self, jobs: int) -> bool:
        return (len(self.running) + 1) * self.settings.processes <= jobs

    def _next(self) -> Cell | None:
        """The longest waiting cell that may start now: no process works on it, no trunk keeps it waiting."""
        for index, cell in enumerate(self.waiting):
            if self.retries.due(cell.spec.spec_id) and not self._blocked(cell):
                return self.waiting.pop(index)
        return None

    def _blocked(self, cell: Cell) -> bool:
        trunk = cell.parent_id
        waits = trunk in self.running or any(other.spec.spec_id == trunk for other in self.waiting)
        return (bool(trunk) and waits) or self._elsewhere(cell)

    def _all_elsewhere(self) -> bool:
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and not self.stop_requested:
            if not all(map(self._blocked, self.waiting)):
                return False
            time.sleep(POLL_SECONDS)
        return not self.stop_requested

    def _give_up_waiting(self) -> None:
        for cell in self.waiting:
            self.show(
                Ended(cell, "running elsewhere", "already running in another process; not started again")
            )
        self.waiting = []

    def _elsewhere(self, cell: Cell) -> bool:
        return state_of(self._run_dir(cell))[0] is CellState.RUNNING

    def _try(self, cell: Cell, fail_fast: bool) -> None:
        """Start ``cell``; what keeps its folder from being used is that cell's failure."""
        try:
            self._start(cell)
        except UserError as error:
            self._account(Ended(cell, "failed", str(error)), fail_fast)

    def _start(self, cell: Cell) -> None:
        if problem := without_trunk(cell, self.settings.runs):
            raise UserError(problem)
        run_dir = prepare_folder(cell.spec, self.settings)
        settings = cell_settings(cell, self.cells, self.settings)
        try:
            write_json(run_dir / SETTINGS_FILE, settings.model_dump(mode="json"))
            with open(run_dir / LOG_FILE, "ab") as log:
                log_start = log.tell()
        except OSError as error:
            raise UserError(
                f"{error.filename}: cannot be written ({reason(error)}); make room, or the folder writable"
            ) from error
        attempts = read_attempts(run_dir)
        process = self.context.Process(target=execute, args=(str(run_dir), os.getpid()), name=cell.label)
        process.start()
        self.running[cell.spec.spec_id] = _Job(cell, process, log_start, attempts)

    def _collect(self, fail_fast: bool) -> None:
        for spec_id, job in list(self.running.items()):
            if job.process.is_alive():
                continue
            job.process.join()
            del self.running[spec_id]
            for warning in said_in_log(self._run_dir(job.cell), job.log_start, "warning"):
                self.show(Warned(job.cell, warning))
            ended = self._ended(job)
            if not self._retry(job, ended.message, fail_fast):
                self._account(ended, fail_fast)

    def _retry(self, job: _Job, message: str, fail_fast: bool) -> bool:
        """Put the cell back in the queue where its failure may pass; whether it was."""
        if self.stopped or (fail_fast and self.failed):
            return False
        run_dir, spec_id = self._run_dir(job.cell), job.cell.spec.spec_id
        try:
            record, attempts = read_record(run_dir), read_attempts(run_dir)
        except UserError:
            return False  # damaged: `_ended` has told it
        end = attempt_end(record.status if record else None, job.process.exitcode, job.attempts, attempts)
        number = self.retries.take(spec_id, end)
        if number is not None:
            self.waiting.insert(0, job.cell)  # it started among the first, being among the longest
            self.show(Retrying(job.cell, number, self.retries.most, message))
        return number is not None

    def _account(self, ended: Ended, fail_fast: bool) -> None:
        if ended.status != "finished":
            self.failed += not self.stopped
            self.waiting = [] if fail_fast else self.waiting
        self.done_compute += self._trained(ended.cell)
        self.show(ended)

    def _ended(self, job: _Job) -> Ended:
        run_dir = self._run_dir(job.cell)
        try:
            record = read_record(run_dir)
        except UserError as error:
            return Ended(job.cell, "failed", str(error))
        if record is not None and record.val_loss is not None:
            return Ended(
                job.cell, record.status.value, f"val_loss {record.val_loss:.4f}, {record.wall_seconds:.0f} s"
            )
        status = record.status.value if record is not None else ("interrupted" if self.stopped else "failed")
        told = _told_exit(job.process.exitcode)
        if record is not None and record.failed_at_step is not None:
            told = f"at step {record.failed_at_step}"
        errors = said_in_log(run_dir, job.log_start, "error")
        if errors:
            told += f": {errors[-1]}"
        elif not shutil.disk_usage(run_dir).free:
            told += ": the disk is full; make room and start the same command again"
        return Ended(job.cell, status, f"{told}; see {run_dir / LOG_FILE}")

    def _stop(self) -> None:
        """Ask every cell to checkpoint and end; kill what does not within the grace time."""
        self.stopped = True
        jobs = [job for job in self.running.values() if job.process.is_alive()]
        for job in jobs:
            job.process.terminate()
        if jobs:
            self.show(Stopping(len(jobs), GRACE_SECONDS))
        deadline = time.monotonic() + GRACE_SECONDS
        for job in jobs:
            job.process.join(max(0.0, deadline - time.monotonic()))
            if job.process.is_alive():
                job.process.kill()

    def progress(self) -> Progress:
        """What is done, what runs, and the time left at the speed so far."""
        running, part = [], 0.0
        for job in self.running.values():
            cell = job.cell
            row = last_row(self._run_dir(cell))
            step = row["step"] if row else 0
            seconds = row["seconds"] if row else 0.0
            speed = row["tokens"] / seconds if row and seconds > 0 else None
            running.append(Running(cell, step, row["train_loss"] if row else None, speed))
            part += cell.trained(step)
        elapsed = time.monotonic() - self.started
        waiting = sum(self.resumed[cell.spec.spec_id] for cell in self.waiting)
        trained = self.done_compute + part + waiting - sum(self.resumed.values())
        left = sum(job.cell.trained() for job in self.running.values()) - part
        left += sum(cell.trained() for cell in self.waiting) - waiting
        done = self.total - len(self.running) - len(self.waiting)
        seconds_left = left * elapsed / trained if trained > 0 and elapsed > 5 else None
        return Progress(done, self.failed, self.total, tuple(running), seconds_left)

    def _trained(self, cell: Cell) -> float:
        row = last_row(self._run_dir(cell))
        return cell.trained(row["step"]) if row else 0.0

    def _run_dir(self, cell: Cell) -> Path:
        return self.settings.runs / cell.spec.spec_id


def _told_exit(code: int | None) -> str:
    """``exit code 1``, or which signal ended the process."""
    if code is None or code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    told = f"killed by {known.get(-code, f'signal {-code}')}"
    return f"{told} (the kernel does so where memory runs out)" if code == -signal.SIGKILL else told
