"""Dropping what no run will need again: the checkpoints of runs that are done.

The rule: a run that finished or diverged is never trained again, so its checkpoints go; its spec, metrics,
dynamics, record and log stay, which is all that analysis and MLflow read. Nothing is dropped of a run that
is running, waits to go on, failed, or is damaged, nor what a trunk keeps for branches that are not done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.errors import UserError
from attnres.json_files import reason
from experiments.checkpoint import BRANCH_POINTS, CHECKPOINTS
from experiments.record import read_record
from experiments.run_folder import locked
from experiments.trunk import needed_checkpoints
from sweeps.plan import PlannedCell


@dataclass(frozen=True)
class Dropped:
    """Checkpoints of one run."""

    run_dir: Path
    files: int
    size_bytes: int


def checkpoints_to_drop(plan: Sequence[PlannedCell], runs: Path) -> list[Dropped]:
    """What `drop` would delete."""
    folders = [runs / item.cell.spec.spec_id for item in plan if item.done]
    found = [_checkpoints_of(run_dir) for run_dir in folders]
    return [dropped for dropped in found if dropped.files]


def drop(dropped: Dropped) -> None:
    """Delete the checkpoints of a run that is done; others wait for its lock meanwhile.

    Raises:
        UserError: it works again, or a file cannot be deleted.
    """
    with locked(dropped.run_dir):
        record = read_record(dropped.run_dir)
        if record is None or not record.status.done:
            raise UserError(f"{dropped.run_dir}: was started again meanwhile; its checkpoints stay")
        try:
            for path in _files(dropped.run_dir):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(
                f"{error.filename}: cannot be deleted ({reason(error)}); make the folder writable"
            ) from error


def _checkpoints_of(run_dir: Path) -> Dropped:
    sizes = [path.stat().st_size for path in _files(run_dir)]
    return Dropped(run_dir, len(sizes), sum(sizes))


def _files(run_dir: Path) -> list[Path]:
    """Checkpoints of a done run, but for those that a branch has yet to start from."""
    needed = needed_checkpoints(run_dir)
    found = [path for folder in (CHECKPOINTS, BRANCH_POINTS) for path in (run_dir / folder).glob("*")]
    return sorted(path for path in found if path.is_file() and path not in needed)
