"""Cells as tasks of Slurm's job arrays, through submitit: submitted once, then watched in the queue.

The jobs do not depend on the sweep that submitted them: interrupted, it leaves them in the queue, and the
same command watches them again. Which cells are queued is squeue's word (`sweeps.slurm_queue`), which run is
at work that of its lock, which is done its record.
"""

import io
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any
from uuid import uuid4

import submitit
from filelock import FileLock, Timeout
from submitit.core.utils import FailedJobError, FailedSubmissionError

from attnres.errors import UserError
from attnres.files import write_json
from experiments.run_folder import SETTINGS_FILE, prepare_folder
from experiments.settings import Settings
from sweeps.grid import Cell, Grid
from sweeps.launch.base import LAUNCHERS, Ended, Launcher, Note, Show, stop_on_signals
from sweeps.launch.slurm_job import CellJob, MeasureJob
from sweeps.launch.slurm_watch import POLL_SECONDS, Watch, in_queue
from sweeps.plan import CellState, state_of
from sweeps.site import Site, read_site
from sweeps.slurm_queue import JOB_PREFIX, SLURM_FOLDER, batches, read_queue, write_batch
from sweeps.throughput import unmeasured
from sweeps.trunks import cell_settings, without_trunk

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "srun")
LOCK_SECONDS = 120.0
"""A sweep waits this long for another one that is submitting."""
RESOLUTION_SECONDS = 60
"""Slurm may give the signal this much early."""


@LAUNCHERS.register("slurm")
class SlurmArrays(Launcher):
    """One array task a cell; a cell that is queued or running is never submitted again."""

    def __init__(self, site_file: Path | None = None) -> None:
        super().__init__(site_file)
        self.site = read_site(site_file)

    def check(self, settings: Settings, *, jobs: int) -> None:  # noqa: ARG002
        """Slurm's commands are here, and the site can carry a cell."""
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing:
            raise UserError(
                f"launcher slurm: {', '.join(missing)} not found; start the sweep on a machine of the "
                "cluster, or use --launcher local"
            )
        if settings.device == "cuda" and not self.site.gpus:
            raise UserError("site: gpus 0, but --device cuda; set gpus = 1 in the site file")
        nodes, gpus, processes = self.site.nodes, self.site.gpus, settings.processes
        if processes % nodes or (gpus and processes != nodes * gpus):
            fit = f"--processes {nodes * gpus}" if gpus else f"--processes to a multiple of {nodes}"
            raise UserError(
                f"site: nodes {nodes}, gpus {gpus}: --processes {processes} of a cell do not fill them; "
                f"set {fit}, or mend the site file"
            )

    def launch(
        self,
        cells: Sequence[Cell],
        settings: Settings,
        *,
        jobs: int,  # noqa: ARG002
        retries: int,  # noqa: ARG002
        fail_fast: bool,
        show: Show,
    ) -> bool:
        """Submit what is not queued yet, then watch until every cell has ended.

        ``jobs`` and ``retries`` are for the machine that the sweep runs on: here the site's ``side_by_side``
        and ``requeues`` count.
        """
        watch = Watch(cells, settings, show)
        with stop_on_signals(watch):
            watch.drop(self._submit(cells, settings, show))
            return watch.wait(fail_fast=fail_fast)

    def measure(self, grid: Grid, study: Path, settings: Settings, show: Show) -> None:
        """One job times the arms: the machine that the sweep runs on is not the one that trains them."""
        if not unmeasured(grid, study):
            return
        task = f"throughput of {grid.name}"
        with _submitting(settings.runs):
            if task not in read_queue(settings.runs):
                job = MeasureJob(grid, study.resolve(), settings)
                alone = settings.model_copy(update={"processes": 1})
                one_device = self.site.model_copy(update={"nodes": 1, "gpus": min(self.site.gpus, 1)})
                job_id = submit_array({task: job}, alone, one_device)[task]
                show(Note(f"the arms' throughput is measured by job {array_of(job_id)}"))
        while in_queue(task, settings.runs, show):
            time.sleep(POLL_SECONDS)
        if unmeasured(grid, study):
            raise UserError(
                f"{settings.runs / SLURM_FOLDER}: the job that measured throughput failed, its log is there; "
                "the same command measures again"
            )
        _forget_batches(settings.runs, keep={job.batch for job in read_queue(settings.runs).values()})

    def _submit(self, cells: Sequence[Cell], settings: Settings, show: Show) -> list[Cell]:
        """Submit the cells that no job and no process works on; returns those whose folder cannot be used."""
        with _submitting(settings.runs):
            queue = read_queue(settings.runs)
            _forget_batches(settings.runs, keep={job.batch for job in queue.values()})
            idle = [cell for cell in cells if cell.spec.spec_id not in queue and _startable(cell, settings)]
            if at_work := len(cells) - len(idle):
                show(Note(f"{at_work} cells are queued or running already: not submitted again"))
            jobs = {spec_id: job.job_id for spec_id, job in queue.items()}
            waited_for = {*jobs, *(cell.spec.spec_id for cell in idle)}
            refused = [
                cell
                for cell in idle
                if not _has_trunk(cell, waited_for, settings, show)
                or not _prepared(cell, cells, settings, show)
            ]
            submitted = [cell for cell in idle if cell not in refused]
            first = [cell for cell in submitted if cell.parent_id not in waited_for]
            self._submit_arrays(first, jobs, settings, show)
            for trunk in dict.fromkeys(cell.parent_id for cell in submitted if cell not in first):
                branches = [cell for cell in submitted if cell.parent_id == trunk]
                self._submit_arrays(branches, jobs, settings, show, after=jobs.get(trunk, ""))
            return refused

    def _submit_arrays(
        self, cells: Sequence[Cell], jobs: dict[str, str], settings: Settings, show: Show, after: str = ""
    ) -> None:
        """Submit ``cells``, to start once job ``after`` has ended; note their jobs in ``jobs``."""
        for chunk in split(cells, self.site.array_limit):
            tasks = {cell.spec.spec_id: cell_job(cell, settings, self.site) for cell in chunk}
            found = submit_array(tasks, settings, self.site, after)
            jobs.update(found)
            waits = f", after their trunk's job {after}" if after else ""
            show(Note(f"submitted {len(chunk)} cells as job {array_of(next(iter(found.values())))}{waits}"))


@contextmanager
def _submitting(runs: Path) -> Iterator[None]:
    """One sweep at a time looks at the queue and adds to it."""
    folder = runs / SLURM_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "lock").acquire(timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise UserError(f"{folder}: another sweep is submitting; wait for it or stop it") from None


def split(cells: Sequence[Cell], limit: int) -> list[Sequence[Cell]]:
    """Arrays of at most ``limit`` cells, in order, none empty."""
    return [cells[start : start + limit] for start in range(0, len(cells), limit)]


def cell_job(cell: Cell, settings: Settings, site: Site) -> CellJob:
    """What the task of ``cell`` does."""
    limit = site.minutes * 60
    useful = max(limit - site.signal_seconds - RESOLUTION_SECONDS, limit / 2)
    return CellJob(str(settings.runs / cell.spec.spec_id), site.requeues, useful)


def submit_array(
    tasks: Mapping[str, Callable[[], None]], settings: Settings, site: Site, after: str = ""
) -> dict[str, str]:
    """Submit ``tasks``, by what the queue is to know them by, as one array; returns the job of each.

    Args:
        tasks: what each task of the array does.
        settings: of the sweep.
        site: what a job asks for.
        after: job that must have ended before one of them starts.

    Raises:
        UserError: sbatch refuses; nothing is queued then.
    """
    batch = f"{settings.grid}-{uuid4().hex[:8]}"
    folder = write_batch(settings.runs, batch, list(tasks))
    try:
        executor = submitit.SlurmExecutor(folder=folder)
        executor.update_parameters(**parameters(site, settings, batch, after))
        with redirect_stderr(io.StringIO()):  # submitit passes sbatch's words on, and raises them too
            submitted = executor.submit_array(list(tasks.values()))
    except (FailedJobError, FailedSubmissionError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder)
        raise UserError(f"sbatch: {_refusal(error)}; mend the site file and start again") from error
    return {task: str(job.job_id) for task, job in zip(tasks, submitted, strict=True)}


def array_of(job_id: str) -> str:
    """Number of the array that a task's job belongs to."""
    return job_id.split("_")[0]


def parameters(site: Site, settings: Settings, batch: str, after: str = "") -> dict[str, Any]:
    """What submitit writes into the script.

    A branch waits for the end of its trunk's job, whatever that end is (``afterany``): one that left no
    checkpoint is told by the branch itself, at once, and nothing stays in the queue for ever. A job that
    requeues itself has not ended.

    The signal goes to the job's step, hence to the training process: with ``B:`` it would go to the batch
    shell, which does not pass it on. ``--cpus-per-task`` is told to srun too, which no longer takes it over
    from sbatch (Slurm 22.05). A cell's processes are the tasks of its step; one that dies ends the others.
    """
    cpus = site.cpus or settings.threads
    asked = {
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        "gpus_per_node": site.gpus or None,
        "mem": f"{round(site.memory_gb * 1024)}MB" if site.memory_gb else None,
        "setup": list(site.setup) or None,
    }
    return {name: value for name, value in asked.items() if value is not None} | {
        "job_name": JOB_PREFIX + batch,
        "time": site.minutes,
        "nodes": site.nodes,
        "ntasks_per_node": settings.processes // site.nodes,
        "cpus_per_task": cpus,
        "signal_delay_s": site.signal_seconds,
        "array_parallelism": site.side_by_side,
        "srun_args": [f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1"],
        "additional_parameters": {"requeue": True}
        | ({"dependency": f"afterany:{after}"} if after else {})
        | {name.replace("_", "-"): value for name, value in site.sbatch.items()},
    }


def _startable(cell: Cell, settings: Settings) -> bool:
    state = state_of(settings.runs / cell.spec.spec_id)[0]
    return state not in (CellState.FINISHED, CellState.DIVERGED, CellState.RUNNING, CellState.DAMAGED)


def _has_trunk(cell: Cell, waited_for: Collection[str], settings: Settings, show: Show) -> bool:
    """Whether a branch's trunk is or will be trained by a job, or has left its checkpoint."""
    if cell.parent_id in waited_for or not (problem := without_trunk(cell, settings.runs)):
        return True
    if state_of(settings.runs / cell.parent_id)[0] is CellState.RUNNING:
        problem = f"trunk {cell.parent_id} is at work outside the queue; start again when it has ended"
    show(Ended(cell, "failed", problem))
    return False


def _prepared(cell: Cell, cells: Sequence[Cell], settings: Settings, show: Show) -> bool:
    """Make the run's folder; what keeps it from being used is that cell's failure."""
    own = cell_settings(cell, cells, settings)
    try:
        run_dir = prepare_folder(cell.spec, settings)
    except UserError as error:
        show(Ended(cell, "failed", str(error)))
        return False
    write_json(run_dir / SETTINGS_FILE, own.model_dump(mode="json"))
    return True


def _forget_batches(runs: Path, keep: set[str]) -> None:
    """Remove the folders of arrays that have left the queue, but for those of cells that are not done."""
    done = (CellState.FINISHED, CellState.DIVERGED)
    for batch, tasks in batches(runs).items():
        cells = [task for task in tasks if (runs / task).exists()]
        if batch not in keep and all(state_of(runs / spec_id)[0] in done for spec_id in cells):
            shutil.rmtree(runs / SLURM_FOLDER / batch)


def _refusal(error: Exception) -> str:
    """sbatch's own words in an error of submitit."""
    told = re.findall(r"^.*sbatch: error: (.+)$", str(error), flags=re.MULTILINE)
    return told[0] if told else " ".join(str(error).split())
