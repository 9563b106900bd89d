"""The side of a Slurm launch that runs inside the job: one cell, its signals, its way back into the queue.

Light to import: the handlers must stand before the seconds that importing torch takes.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnres.command_line import INTERRUPTED
from experiments.signals import SIGNALS

if TYPE_CHECKING:
    from experiments.settings import Settings
    from sweeps.grid import Grid


@dataclass(frozen=True)
class CellJob:
    """Trains the cell in ``run_dir`` as far as the job lasts, then requeues the job if the cell is not done.

    It runs in the process that srun started, so a signal to the job's step reaches the training itself. Of
    several processes the first requeues, and the others have ended well meanwhile.
    """

    run_dir: str
    requeues: int
    """Most times the job may requeue itself."""
    useful_seconds: float
    """A job that lasted this long and made no step never will."""

    def __call__(self) -> None:
        """Exit code 0 (returns), 1, 2 or 130 of ``python -m experiments run``, as the state of the job."""
        started, before = time.monotonic(), self._step()
        try:
            for number in SIGNALS:  # until training takes them over, nothing is lost by stopping at once
                signal.signal(number, signal.default_int_handler)
            from experiments.cell import run_in_log

            code = run_in_log(Path(self.run_dir))
        except KeyboardInterrupt:
            code = INTERRUPTED
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if code == INTERRUPTED and os.environ.get("SLURM_PROCID", "0") != "0":
            return
        if code == INTERRUPTED:
            stuck = self._step() == before and time.monotonic() - started >= self.useful_seconds
            self._requeue(stuck)
        if code:
            sys.exit(code)

    def _step(self) -> int:
        from experiments.history import last_row

        row = last_row(Path(self.run_dir))
        return row["step"] if row else 0

    def _requeue(self, stuck: bool) -> None:
        job_id, restarts = _job_id(), int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if stuck:
            _tell("error: not one step before the time limit; raise `minutes` in the site file")
        elif restarts >= self.requeues:
            _tell(f"error: requeued {restarts} times; the site file's `requeues` allows no more")
        elif _being_cancelled(job_id):
            _tell(f"job {job_id} is being cancelled: not requeued")
        else:
            done = subprocess.run(
                ["scontrol", "requeue", job_id], capture_output=True, text=True, check=False, timeout=60
            )
            told = " ".join(done.stderr.split())
            _tell(f"error: scontrol requeue: {told}" if done.returncode else f"job {job_id} is requeued")


@dataclass(frozen=True)
class MeasureJob:
    """Times the arms of ``grid`` side by side on the machines that train them."""

    grid: "Grid"
    study: Path
    settings: "Settings"

    def __call__(self) -> None:
        """Write the ratios to the study's plan.json."""
        from sweeps.throughput import measure_missing

        measure_missing(self.grid, self.study, self.settings)


def _job_id() -> str:
    """``<array>_<task>``: SLURM_JOB_ID of an array's last task is the array's own and means all of it."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


def _being_cancelled(job_id: str) -> bool:
    """Whether a person cancels the job: one stopped for its limit or by preemption counts as running."""
    done = subprocess.run(
        ["squeue", "--noheader", f"--jobs={job_id}", "--format=%T"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.stdout.strip() in ("COMPLETING", "CANCELLED")


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
