"""The start of a branch: a trunk's state at the branch point, and the history up to there, made its own.

A branch's folder remembers where it came from (trunk.json).
"""

from pathlib import Path

from pydantic import Field

from attnres.errors import UserError
from attnres.files import write_json
from attnres.frozen import Frozen
from attnres.json_files import read_model
from experiments.checkpoint import BRANCH_POINTS, LoadedCheckpoint, intact_checkpoint, load_latest
from experiments.dynamics import DYNAMICS_FILE, read_dynamics, write_dynamics
from experiments.history import METRICS_FILE, Row, read_rows, write_rows
from experiments.mirror import DEPTH
from experiments.run_folder import SPEC_FILE
from experiments.settings import Settings
from experiments.spec import RunSpec
from experiments.trunk import Agenda, agenda_of, difference_of

TRUNK_FILE = "trunk.json"
ADVICE = "train the trunk (the same sweep does it)"


class _Origin(Frozen):
    trunk: str = Field(min_length=1)


def origin_of(run_dir: Path) -> str:
    """spec_id of the trunk that the run in ``run_dir`` started from; empty for a run of its own.

    Raises:
        UserError: the file that says so is damaged.
    """
    path = run_dir / TRUNK_FILE
    if not path.exists():
        return ""
    return read_model(path, _Origin, f"delete {run_dir} to branch again").trunk


def branch_off(spec: RunSpec, settings: Settings, run_dir: Path, parent: str) -> LoadedCheckpoint:
    """The state of trunk ``parent`` at the branch point of ``spec``; its history up to there is copied.

    Of the trunk's rows and readings only those become the branch's that it would have made itself.

    Raises:
        UserError: ``parent`` is no trunk of this run, or has not left what it needs.
    """
    trunk_dir, step = settings.runs / parent, spec.stable_steps
    _check_trunk(spec, trunk_dir)
    found = _state(trunk_dir, step)
    own = agenda_of(spec, settings)
    rows = [_own_row(row, own) for row in read_rows(trunk_dir / METRICS_FILE) if row["step"] <= step]
    readings = read_dynamics(trunk_dir / DYNAMICS_FILE)
    lacking = {s for s in own.probes if s <= step} - set(readings)
    lacking |= {s for s in own.evaluations if s <= step} - {r["step"] for r in rows if "val_loss" in r}
    if [row["step"] for row in rows] != list(range(1, step + 1)) or lacking:
        at = f"step {min(lacking)}" if lacking else f"the steps up to {step}"
        raise UserError(f"trunk {parent}: has not recorded {at} as this run needs it; {ADVICE}")
    write_json(run_dir / TRUNK_FILE, {"trunk": parent})
    write_rows(run_dir / METRICS_FILE, rows)
    if kept := {s: readings[s] for s in own.probes if s <= step}:
        write_dynamics(run_dir / DYNAMICS_FILE, kept)
    return found


def _check_trunk(spec: RunSpec, trunk_dir: Path) -> None:
    what = f"trunk {trunk_dir.name}"
    if not (trunk_dir / SPEC_FILE).exists():
        raise UserError(f"{what}: not in {trunk_dir.parent}; {ADVICE}")
    trunk = read_model(trunk_dir / SPEC_FILE, RunSpec, f"move {trunk_dir} away and {ADVICE}")
    schedules = (spec.train.schedule, trunk.train.schedule)
    difference = "schedule" if schedules != ("wsd", "constant") else difference_of(spec, trunk)
    if difference:
        raise UserError(f"{what}: is none of run {spec.spec_id}: {difference} differs")


def _state(trunk_dir: Path, step: int) -> LoadedCheckpoint:
    folder = trunk_dir / BRANCH_POINTS
    if intact_checkpoint(folder, step) is None:
        raise UserError(f"trunk {trunk_dir.name}: no intact checkpoint of step {step} in {folder}; {ADVICE}")
    found = load_latest(folder, last=step)
    assert found is not None and found.step == step
    if found.state["spec_id"] != trunk_dir.name:
        raise UserError(f"{found.path}: belongs to run {found.state['spec_id']}; remove it and {ADVICE}")
    return found


def _own_row(row: Row, own: Agenda) -> Row:
    """A trunk's row as the branch itself would have written it, training time apart."""
    foreign: set[str] = set()
    if row["step"] not in own.evaluations:
        foreign.add("val_loss")
    if row["step"] not in own.probes:
        foreign |= set(DEPTH)
    return {name: value for name, value in row.items() if name not in foreign}
