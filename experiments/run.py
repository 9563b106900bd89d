"""run(spec) -> RunRecord: one run from its spec to its record, resumable at any moment."""

import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
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
from experiments.checkpoint import CHECKPOINTS, LoadedCheckpoint, load_checkpoint, load_latest
from experiments.data.base import DATASETS
from experiments.dynamics import Dynamics
from experiments.environment import find_device
from experiments.feasibility import check_feasible, check_processes
from experiments.group import Group, LeaderFailedError, OtherProcessError, joined
from experiments.history import History
from experiments.module import TrainingModule
from experiments.outcome import Inputs, Start, make_record
from experiments.parallel import choose
from experiments.record import RECORD_FILE, RunRecord, RunStatus, write_record
from experiments.run_folder import LOG_FILE, locked, prepare_folder
from experiments.settings import Branch, Settings
from experiments.spec import RunSpec
from experiments.tracking import NoTracker, Tracker, open_tracker
from experiments.trainer import Steps, make_trainer
from experiments.trunk import (
    agenda_of,
    branches_of,
    check_branches,
    final_record,
    load_trunk,
    remember_branches,
)
from experiments.validation import VALIDATION_TOKENS


def run(spec: RunSpec, settings: Settings) -> RunRecord:
    """Train ``spec`` to its end, from its newest checkpoint if there is one.

    A run that finished or diverged is not trained again: its record is returned as it stands. Only a trunk
    is, from where its branches lack something of it. With ``settings.processes`` above 1 this is one of as
    many processes that call together (`experiments.start`).

    Raises:
        UserError: the spec cannot be carried out, its data are missing or damaged (all of it before a
            folder is made), another process works on the run, or a file of its folder cannot be written
            or is damaged.
        LeaderFailedError: in a process that is not the first: that one says why.
    """
    check_feasible(spec)
    check_processes(spec, settings)
    check_branches(spec, settings.branches)
    run_dir = settings.runs / spec.spec_id
    with joined(settings, spec.spec_id) as group, ExitStack() as held:
        done = group.lead(lambda: final_record(run_dir, settings))
        if done is not None:
            return done
        inputs = _load(spec, settings, group)
        done = group.lead(lambda: _take(spec, settings, held))
        if done is not None:
            return done
        return _Attempt(spec, settings, run_dir, inputs, group).execute()


def _load(spec: RunSpec, settings: Settings, group: Group) -> Inputs:
    device = find_device(settings, group.world // group.nodes)
    data = DATASETS.get(spec.dataset).prepare(spec.shape.vocab_size, settings.data)
    data.check_windows(spec.shape.seq_len)
    windows = data.validation(seq_len=spec.shape.seq_len, max_tokens=VALIDATION_TOKENS)
    return Inputs(device, data, torch.from_numpy(windows))


def _take(spec: RunSpec, settings: Settings, held: ExitStack) -> RunRecord | None:
    """Hold the lock of the run's folder; the record if another process has finished the run meanwhile."""
    run_dir = prepare_folder(spec, settings)
    held.enter_context(locked(run_dir))
    done = final_record(run_dir, settings)
    if done is None:
        remove_leftovers(run_dir)
        (run_dir / RECORD_FILE).unlink(missing_ok=True)
    return done


class _Attempt:
    """One start of a run: loads, trains, and writes the record."""

    def __init__(
        self, spec: RunSpec, settings: Settings, run_dir: Path, inputs: Inputs, group: Group
    ) -> None:
        self.spec, self.settings, self.run_dir, self.inputs = spec, settings, run_dir, inputs
        self.group = group
        self.attempts = group.lead(lambda: count_attempt(run_dir))
        torch.set_num_threads(settings.threads)
        self.recorder: Recorder | None = None
        self.tracker: Tracker = open_tracker(spec, run_dir, settings) if group.leads else NoTracker()

    def execute(self) -> RunRecord:
        """Train and record; whatever happens, the record tells the truth."""
        group = self.group
        with Stop() as stop:
            failed_at = None
            try:
                status = self._train(stop)
            except DivergedError as error:  # all processes see the same numbers
                status, failed_at = RunStatus.DIVERGED, error.step
                self._note(str(error))
            except LeaderFailedError:
                raise
            except UserError as error:
                self._fail(error)
                raise
            except Exception as error:
                self._note(traceback.format_exc())
                record = self._fail(error)
                if record is None or group.world > 1:  # the others wait for this process: it must end
                    raise
                return record
            return group.lead(lambda: self._end(status, failed_at))

    def _fail(self, error: Exception) -> RunRecord | None:
        """The record of a run that ``error`` ends; a process that is not the first leaves word for it."""
        name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        told = f"{name}{one_line(error)}"
        if not self.group.leads:
            self.group.tell_failure(told)
            return None
        other = self.group.failure()
        self._note(f"error: {other or told}")
        error = OtherProcessError(other) if other else error
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
        spec, settings, group = self.spec, self.settings, self.group
        parallel = choose(settings, group)
        model = build(spec.shape, spec.stream, spec.seed)
        branches, checkpoint = self._checkpoint()
        step, seconds = (checkpoint.step, checkpoint.state["seconds"]) if checkpoint else (0, 0.0)
        agenda = agenda_of(spec, settings, branches)
        dynamics = group.lead(lambda: Dynamics(self.run_dir, agenda.probes, steps=spec.steps, step=step))
        module = TrainingModule(model, spec, dynamics, parallel, micro_sequences=settings.micro_sequences)
        module.step = step
        self.recorder = Recorder(
            self.run_dir,
            self._history(step),
            self.inputs.windows_NT,
            evaluations=agenda.evaluations,
            branch_points=agenda.branch_points,
            checkpoint_seconds=settings.checkpoint_seconds,
            checkpoint_steps=settings.checkpoint_steps,
            stop=stop,
            seconds=seconds,
            tell=self.tracker.log,
        )
        state = checkpoint.state if checkpoint else None
        trainer = make_trainer(spec, self.inputs.device, parallel, self.run_dir, self.recorder, state)
        batches = DataLoader(Steps(self.inputs.data, spec, step, group), batch_size=None)
        try:
            trainer.fit(module, batches)
        finally:
            if self.recorder.history is not None:
                self.recorder.history.close()
                dynamics.write()
        return RunStatus.FINISHED if module.step == spec.steps else RunStatus.INTERRUPTED

    def _checkpoint(self) -> tuple[Sequence[Branch], LoadedCheckpoint | None]:
        """The run's branches, and where it continues: the first process's choice, read by all (case L19)."""
        found: list[LoadedCheckpoint | None] = []

        def choose_newest() -> tuple[Sequence[Branch], Path | None]:
            branches = branches_of(self.run_dir, self.settings.branches)
            newest = self._newest(branches)
            found.append(newest)
            if newest is not None:
                self._note(f"continues from step {newest.step} of {self.spec.steps} ({newest.path.name})")
            return branches, newest.path if newest else None

        branches, path = self.group.lead(choose_newest)
        if path is None:
            return branches, None
        return branches, found[0] if found else load_checkpoint(path)

    def _newest(self, branches: Sequence[Branch]) -> LoadedCheckpoint | None:
        """The run's newest checkpoint, else its trunk's at the branch point."""
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

    def _history(self, step: int) -> History | None:
        """The rows up to ``step``, for the first process to go on with."""
        opened: list[History] = []
        self.group.lead(lambda: opened.append(History(self.run_dir, step)))
        return opened[0] if opened else None

    def _last_step(self) -> int:
        rows = self.recorder.history.rows if self.recorder and self.recorder.history else []
        return rows[-1]["step"] if rows else 0

    def _warn(self, text: str) -> None:
        """For the log and for whoever started the run."""
        self._note(f"warning: {text}")
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def _note(self, text: str) -> None:
        """For the log, which is the first process's; what another one has to say goes to its stderr."""
        if not self.group.leads:
            print(f"process {self.group.rank + 1} of {self.group.world}: {text.rstrip()}", file=sys.stderr)
            return
        with open(self.run_dir / LOG_FILE, "a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text.rstrip()}\n")
