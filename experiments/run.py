"""run(spec) -> RunRecord: one run from its spec to its record, resumable at any moment."""

import json
import logging
import statistics
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from torch.utils.data import DataLoader, IterableDataset

from attnres import kernels
from attnres.accounting import FlopCount, ParameterCount, count_parameters, flops_per_token
from attnres.errors import UserError, one_line
from attnres.files import remove_leftovers
from attnres.initialise import build
from experiments.callbacks import DivergedError, Recorder, Stop
from experiments.checkpoint import load_latest
from experiments.data.base import DATASETS, TokenData
from experiments.dynamics import Dynamics
from experiments.environment import device_kind, find_device, git_sha, peak_memory_bytes
from experiments.feasibility import check_feasible
from experiments.history import History
from experiments.module import TrainingModule
from experiments.record import RECORD_FILE, RunRecord, RunStatus, read_record, write_record
from experiments.run_folder import LOG_FILE, count_attempt, locked, prepare_folder
from experiments.settings import Settings
from experiments.spec import RunSpec
from experiments.tracking import open_tracker
from experiments.validation import VALIDATION_TOKENS

LAST_STEPS = 50
"""Steps whose mean loss is the record's train_loss."""


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
    return (
        record if record is not None and record.status in (RunStatus.FINISHED, RunStatus.DIVERGED) else None
    )


@dataclass(frozen=True)
class _Inputs:
    """What a run needs of the machine it runs on."""

    device: torch.device
    data: TokenData
    windows_NT: torch.Tensor


def _load(spec: RunSpec, settings: Settings) -> _Inputs:
    device = find_device(settings)
    data = DATASETS.get(spec.dataset).prepare(spec.shape.vocab_size, settings.data)
    data.check_windows(spec.shape.seq_len)
    windows = data.validation(seq_len=spec.shape.seq_len, max_tokens=VALIDATION_TOKENS)
    return _Inputs(device, data, torch.from_numpy(windows))


class _Steps(IterableDataset[torch.Tensor]):
    """The batches of steps ``start`` .. ``spec.steps - 1``, each computed from its number."""

    def __init__(self, data: TokenData, spec: RunSpec, start: int) -> None:
        self.data, self.spec, self.start = data, spec, start

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(self.start, self.spec.steps):
            yield torch.from_numpy(
                self.data.batch(
                    step,
                    batch_sequences=self.spec.batch_sequences,
                    seq_len=self.spec.shape.seq_len,
                    data_seed=self.spec.data_seed,
                )
            )


class _Attempt:
    """One start of a run: loads, trains, and writes the record."""

    def __init__(self, spec: RunSpec, settings: Settings, run_dir: Path, inputs: _Inputs) -> None:
        self.spec, self.settings, self.run_dir = spec, settings, run_dir
        self.device, self.data, self.windows_NT = inputs.device, inputs.data, inputs.windows_NT
        self.attempts, self.started_at = count_attempt(run_dir)
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
                self._end(RunStatus.FAILED, self._last_step() + 1)
                raise
            except Exception as error:  # noqa: BLE001  (whatever a cell raises is that cell's failure: recorded, logged, reported)
                failed_at = self._last_step() + 1
                self._note(traceback.format_exc())
                self._note(f"error: {type(error).__name__}: {one_line(error)}")
            return self._end(status, failed_at)

    def _end(self, status: RunStatus, failed_at: int | None) -> RunRecord:
        record = self._record(status, failed_at)
        write_record(self.run_dir, record)
        self.tracker.close(status)
        return record

    def _train(self, stop: Stop) -> RunStatus:
        spec, settings = self.spec, self.settings
        model = build(spec.shape, spec.stream, spec.seed)
        self.parameters = count_parameters(model)
        checkpoint = load_latest(self.run_dir / "checkpoints", self._warn)
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
            self.windows_NT,
            evaluations=settings.evaluations,
            checkpoint_seconds=settings.checkpoint_seconds,
            checkpoint_steps=settings.checkpoint_steps,
            stop=stop,
            seconds=seconds,
            tell=self.tracker.log,
        )
        trainer = _trainer(
            spec, self.device, self.run_dir, self.recorder, checkpoint.state if checkpoint else None
        )
        try:
            trainer.fit(module, DataLoader(_Steps(self.data, spec, module.step), batch_size=None))
        finally:
            self.recorder.history.close()
            dynamics.write()
        return RunStatus.FINISHED if module.step == spec.steps else RunStatus.INTERRUPTED

    def _record(self, status: RunStatus, failed_at: int | None) -> RunRecord:
        spec = self.spec
        flops = flops_per_token(spec.shape, spec.stream)
        parameters = count_parameters(build(spec.shape, spec.stream, spec.seed, device="meta"))
        recorder = self.recorder
        validation = recorder.validation if recorder and status is RunStatus.FINISHED else None
        losses = [row["train_loss"] for row in recorder.history.rows[-LAST_STEPS:]] if recorder else []
        return RunRecord(
            **_identity(spec, self.tracker.run_id),
            **_sizes(parameters, flops),
            tokens=spec.tokens,
            compute=flops.total * spec.tokens,
            data_passes=self.data.passes(spec.tokens),
            val_loss=validation.mean if validation else None,
            val_loss_se=validation.standard_error if validation else None,
            val_tokens=self.windows_NT.shape[0] * (self.windows_NT.shape[1] - 1),
            val_bits_per_byte=self.data.bits_per_byte(validation.mean) if validation else None,
            train_loss=statistics.fmean(losses) if losses else None,
            status=status,
            failed_at_step=failed_at,
            attempts=self.attempts,
            wall_seconds=round(recorder.seconds(), 3) if recorder else 0.0,
            tokens_per_second=self._throughput(),
            peak_memory_bytes=peak_memory_bytes(self.device),
            device=device_kind(self.device),
            precision=spec.train.precision,
            threads=self.settings.threads,
            compile=False,  # docs/decisions/2026-11-29-compile-in-bf16.md
            kernels=kernels.backend() if self.device.type == "cpu" else "torch",
            torch_version=torch.__version__,
            git_sha=git_sha(),
            started_at=self.started_at,
        )

    def _throughput(self) -> float | None:
        seconds = self.recorder.step_seconds[3:] if self.recorder else []
        return round(self.spec.train.batch_tokens / statistics.median(seconds), 1) if seconds else None

    def _last_step(self) -> int:
        return self.recorder.history.rows[-1]["step"] if self.recorder and self.recorder.history.rows else 0

    def _warn(self, text: str) -> None:
        """For the log and for whoever started the run."""
        self._note(f"warning: {text}")
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def _note(self, text: str) -> None:
        with open(self.run_dir / LOG_FILE, "a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text.rstrip()}\n")


def _identity(spec: RunSpec, run_id: str) -> dict[str, Any]:
    train = spec.train
    return {
        "spec_id": spec.spec_id,
        "run_id": run_id,
        "parent_id": "",
        "stream": spec.stream.name,
        "variant": spec.stream.variant,
        "stream_options": json.dumps(spec.stream.options, sort_keys=True, separators=(",", ":")),
        "dataset": spec.dataset,
        "seed": spec.seed,
        "data_seed": spec.data_seed,
        "numerics": spec.numerics,
        **spec.shape.model_dump(),
        "budget": spec.budget,
        "batch_tokens": train.batch_tokens,
        "steps": spec.steps,
        "lr": train.lr,
        "warmup": train.warmup,
        "schedule": train.schedule,
        "weight_decay": train.weight_decay,
        "recipe": train.recipe,
    }


def _sizes(parameters: ParameterCount, flops: FlopCount) -> dict[str, Any]:
    return {
        "params_embedding": parameters.embedding,
        "params_decoder": parameters.decoder,
        "params_stream": parameters.stream,
        "params_head": parameters.head,
        "flops_per_token_matmul": flops.matmul,
        "flops_per_token_attention": flops.attention,
        "flops_per_token_head": flops.head,
        "flops_per_token_stream": flops.stream,
    }


class _Restore(lightning.Callback):
    """Loads a checkpoint's state once model and optimiser are on their device."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        pl_module.model.load_state_dict(self.state["model"], strict=True)
        trainer.optimizers[0].load_state_dict(self.state["optimizer"])
        torch.set_rng_state(self.state["rng"])


def _trainer(
    spec: RunSpec, device: torch.device, run_dir: Path, recorder: Recorder, state: dict[str, Any] | None
) -> lightning.Trainer:
    """A trainer that only loops: steps, history and checkpoints are ours."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for message in (
        ".*does not have many workers.*",
        ".*GPU available but not used.*",
        ".*isinstance.*LeafSpec.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    return lightning.Trainer(
        accelerator=device.type,
        devices=1,
        precision="bf16-mixed" if spec.train.precision == "bf16" else "32-true",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=run_dir,
        callbacks=[*([_Restore(state)] if state else []), recorder],
    )
