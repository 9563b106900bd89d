"""run(spec) -> RunRecord: one run from its spec to its record, resumable at any moment."""

import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from attnres.errors import UserError, one_line
from attnres.files import remove_leftovers
from attnres.initialise import build
from experiments.attempts import count_attempt, note_failure
from experiments.branch import branch_off, origin_of
from experiments.callbacks import DivergedError, Recorder, Stop
from experiments.checkpoint import CHECKPOINTS, LoadedCheckpoint, load_latest
from experiments.data.base import DATASETS
from experiments.dynamics import Dynamics
from experiments.environment import find_device
from experiments.feasibility import check_feasible
from experiments.history import History
from experiments.module import TrainingModule
from experiments.outcome import Inputs, Start, make_record
from experiments.record import RECORD_FILE, RunRecord, RunStatus, read_record, write_record
from experiments.run_folder import LOG_FILE, locked, prepare_folder
from experiments.settings import Branch, Settings
from experiments.spec import RunSpec
from experiments.tracking import open_tracker
from experiments.trainer import Steps, make_trainer
from experiments.trunk import (
    agenda_of,
    branches_of,
    check_branches,
    first_lacking,
    load_trunk,
    remember_branches,
    unfinished,
)
from experiments.validation import VALIDATION_TOKENS


def run(spec: RunSpec, settings: Settings) -> RunRecord:
    """Train ``spec`` to its end, from its newest checkpoint if there is one.

    A run that finished or diverged is not trained again: its record is returned as it stands. Only a trunk
    is, from where its branches lack something of it.

    Raises:
        UserError: the spec cannot be carried out, its data are missing or damaged (all of it before a
            folder is made), another process works on the run, or a file of its folder cannot be written
            or is damaged.
    """
    check_feasible(spec)
    check_branches(spec, settings.branches)
    done = _done(settings.runs / spec.spec_id, settings)
    if done is not None:
        return done
    inputs = _load(spec, settings)
    run_dir = prepare_folder(spec, settings)
    with locked(run_dir):
        done = _done(run_dir, settings)
        if done is not None:
            return done
        remove_leftovers(run_dir)
        (run_dir / RECORD_FILE).unlink(missing_ok=True)
        return _Attempt(spec, settings, run_dir, inputs).execute()


def _done(run_dir: Path, settings: Settings) -> RunRecord | None:
    record = read_record(run_dir)
    if record is None or not record.status.done:
        return None
    lacking = first_lacking(run_dir, settings, unfinished(run_dir, settings.branches))
    reached = lacking is None or (record.failed_at_step is not None and lacking >= record.failed_at_step)
    return record if reached else None


def _load(spec: RunSpec, settings: Settings) -> Inputs:
    device = find_device(settings)
    data = DATASETS.get(spec.dataset).prepare(spec.shape.vocab_size, settings.data)
    data.check_windows(spec.shape.seq_len)
    windows = data.validation(seq_len=spec.shape.seq_len, max_tokens=VALIDATION_TOKENS)
    return Inputs(device, data, torch.from_numpy(windows))


class _Attempt:
    """One start of a run: loads, trains, and writes the record."""

    def __init__(self, spec: RunSpec, settings: Settings, run_dir: Path, inputs: Inputs) -> None:
        self.spec, self.settings, self.run_dir, self.inputs = spec, settings, run_dir, inputs
        self.attempts = count_attempt(run_dir)
        torch.set_num_threads(settings.threads)
        self.recorder: Recorder | None = None
        self.tracker = open_tracker(spec, run_dir, settings)

    def execute(self) -> RunRecord:
        """Train and record; whatever happens, the record tells the truth."""
        with Stop() as stop:
            status, failed_at = RunStatus.FAILED, None
            try:
                status = self._train(stop)
            except DivergedError as error:
                status, failed_at = RunStatus.DIVERGED, error.step
                self._note(str(error))
            except UserError as error:
                self._note(f"error: {error}")
                self._fail(error)
                raise
            except Exception as error:  # noqa: BLE001  (whatever a cell raises is that cell's failure: recorded, logged, reported)
                self._note(traceback.format_exc())
                self._note(f"error: {type(error).__name__}: {one_line(error)}")
                return self._fail(error)
            return self._end(status, failed_at)

    def _fail(self, error: Exception) -> RunRecord:
        step = self._last_step() + 1
        note_failure(self.run_dir, step, error)
        return self._end(RunStatus.FAILED, step)

    def _end(self, status: RunStatus, failed_at: int | None) -> RunRecord:
        start = Start(
            self.attempts.attempts, self.attempts.started_at, self.tracker.run_id, origin_of(self.run_dir)
        )
        record = make_record(
            self.spec, self.settings, self.inputs, start, self.recorder, status=status, failed_at=failed_at
        )
        write_record(self.run_dir, record)
        self.tracker.close(status)
        return record

    def _train(self, stop: Stop) -> RunStatus:
        spec, settings = self.spec, self.settings
        model = build(spec.shape, spec.stream, spec.seed)
        branches = branches_of(self.run_dir, settings.branches)
        checkpoint = self._checkpoint(branches)
        step, seconds = 0, 0.0
        if checkpoint is not None:
            step, seconds = checkpoint.step, checkpoint.state["seconds"]
            self._note(f"continues from step {step} of {spec.steps} ({checkpoint.path.name})")
        agenda = agenda_of(spec, settings, branches)
        dynamics = Dynamics(self.run_dir, agenda.probes, steps=spec.steps, step=step)
        module = TrainingModule(model, spec, dynamics, micro_sequences=settings.micro_sequences)
        module.step = step
        self.recorder = Recorder(
            self.run_dir,
            History(self.run_dir, module.step),
            self.inputs.windows_NT,
            evaluations=agenda.evaluations,
            branch_points=agenda.branch_points,
            checkpoint_seconds=settings.checkpoint_seconds,
            checkpoint_steps=settings.checkpoint_steps,
            stop=stop,
            seconds=seconds,
            tell=self.tracker.log,
        )
        trainer = make_trainer(
            spec, self.inputs.device, self.run_dir, self.recorder, checkpoint.state if checkpoint else None
        )
        try:
            trainer.fit(module, DataLoader(Steps(self.inputs.data, spec, module.step), batch_size=None))
        finally:
            self.recorder.history.close()
            dynamics.write()
        return RunStatus.FINISHED if module.step == spec.steps else RunStatus.INTERRUPTED

    def _checkpoint(self, branches: Sequence[Branch]) -> LoadedCheckpoint | None:
        """Where to continue: the run's newest checkpoint, else its trunk's at the branch point."""
        spec, settings, run_dir = self.spec, self.settings, self.run_dir
        if branches:
            remember_branches(run_dir, branches)
            found = load_trunk(run_dir, settings, branches, self._warn)
        else:
            found = load_latest(run_dir / CHECKPOINTS, self._warn)
        if found is not None and found.state["spec_id"] != spec.spec_id:
            raise UserError(f"{found.path}: belongs to run {found.state['spec_id']}; remove it")
        parent = settings.parent or origin_of(run_dir)
        if found is None and parent:
            self._note(f"branches from trunk {parent}")
            return branch_off(spec, settings, run_dir, parent)
        return found

    def _last_step(self) -> int:
        return self.recorder.history.rows[-1]["step"] if self.recorder and self.recorder.history.rows else 0

    def _warn(self, text: str) -> None:
        """For the log and for whoever started the run."""
        self._note(f"warning: {text}")
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def _note(self, text: str) -> None:
        with open(self.run_dir / LOG_FILE, "a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text.rstrip()}\n")
