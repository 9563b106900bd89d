"""run(spec) -> RunRecord: one run from its spec to its record, resumable at any moment."""

import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from attnres.errors import UserError, one_line
from attnres.files import remove_leftovers
from attnres.initialise import build
from experiments.attempts import count_attempt, note_failure
from experiments.callbacks import DivergedError, Recorder, Stop
from experiments.checkpoint import CHECKPOINTS_FOLDER, load_latest
from experiments.data.base import DATASETS
from experiments.dynamics import Dynamics
from experiments.environment import find_device
from experiments.feasibility import check_feasible
from experiments.history import History
from experiments.module import TrainingModule
from experiments.outcome import Inputs, Start, make_record
from experiments.record import RECORD_FILE, RunRecord, RunStatus, read_record, write_record
from experiments.run_folder import LOG_FILE, locked, prepare_folder
from experiments.settings import Settings
from experiments.spec import RunSpec
from experiments.tracking import open_tracker
from experiments.trainer import Steps, make_trainer
from experiments.validation import VALIDATION_TOKENS


def run(spec: RunSpec, settings: Settings) -> RunRecord:
    """Train ``spec`` to its end, from its newest checkpoint if there is one.

    A run that finished or diverged is not trained again: its record is returned as it stands.

    Raises:
        UserError: the spec cannot be carried out, its data are missing or damaged (all of it before a
            folder is made), another process works on the run, or a file of its folder cannot be written
            or is damaged.
    """
    check_feasible(spec)
    done = _done(settings.runs / spec.spec_id)
    if done is not None:
        return done
    inputs = _load(spec, settings)
    run_dir = prepare_folder(spec, settings)
    with locked(run_dir):
        done = _done(run_dir)
        if done is not None:
            return done
        remove_leftovers(run_dir)
        (run_dir / RECORD_FILE).unlink(missing_ok=True)
        return _Attempt(spec, settings, run_dir, inputs).execute()


def _done(run_dir: Path) -> RunRecord | None:
    record = read_record(run_dir)
    return record if record is not None and record.status.done else None


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
        start = Start(self.attempts.attempts, self.attempts.started_at, self.tracker.run_id)
        record = make_record(
            self.spec, self.settings, self.inputs, start, self.recorder, status=status, failed_at=failed_at
        )
        write_record(self.run_dir, record)
        self.tracker.close(status)
        return record

    def _train(self, stop: Stop) -> RunStatus:
        spec, settings = self.spec, self.settings
        model = build(spec.shape, spec.stream, spec.seed)
        checkpoint = load_latest(self.run_dir / CHECKPOINTS_FOLDER, self._warn)
        step, seconds = 0, 0.0
        if checkpoint is not None:
            if checkpoint.state["spec_id"] != spec.spec_id:
                raise UserError(f"{checkpoint.path}: belongs to run {checkpoint.state['spec_id']}; remove it")
            step, seconds = checkpoint.step, checkpoint.state["seconds"]
            self._note(f"continues from step {step} of {spec.steps} ({checkpoint.path.name})")
        dynamics = Dynamics(self.run_dir, spec.steps, probes=settings.probes, step=step)
        module = TrainingModule(model, spec, dynamics, micro_sequences=settings.micro_sequences)
        module.step = step
        self.recorder = Recorder(
            self.run_dir,
            History(self.run_dir, module.step),
            self.inputs.windows_NT,
            evaluations=settings.evaluations,
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

    def _last_step(self) -> int:
        return self.recorder.history.rows[-1]["step"] if self.recorder and self.recorder.history.rows else 0

    def _warn(self, text: str) -> None:
        """For the log and for whoever started the run."""
        self._note(f"warning: {text}")
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def _note(self, text: str) -> None:
        with open(self.run_dir / LOG_FILE, "a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text.rstrip()}\n")
