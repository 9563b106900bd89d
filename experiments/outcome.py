"""The record of a run, made from what it was and what came of it."""

import json
import statistics
from dataclasses import dataclass
from typing import Any

import torch

from attnres import fused_reads, kernels
from attnres.accounting import FlopCount, ParameterCount, count_parameters, flops_per_token
from attnres.initialise import build
from experiments.callbacks import Recorder
from experiments.data.base import TokenData
from experiments.environment import device_kind, git_sha, peak_memory_bytes
from experiments.history import finite
from experiments.record import RunRecord, RunStatus
from experiments.settings import Settings
from experiments.spec import RunSpec

LAST_STEPS = 50
"""Steps whose mean loss is the record's train_loss."""

COLD_STEPS = 3
"""First steps of a start, left out of its throughput."""


@dataclass(frozen=True)
class Inputs:
    """What a run needs of the machine it runs on."""

    device: torch.device
    data: TokenData
    windows_NT: torch.Tensor
    """Validation windows (window, position + 1)."""


@dataclass(frozen=True)
class Start:
    """One start of a run: which it is, and when the first was."""

    attempts: int
    started_at: str
    run_id: str
    parent_id: str
    """The trunk it branched from; empty for a run of its own."""


def make_record(
    spec: RunSpec,
    settings: Settings,
    inputs: Inputs,
    start: Start,
    recorder: Recorder | None,
    *,
    status: RunStatus,
    failed_at: int | None,
) -> RunRecord:
    """The record; ``recorder`` is None where training was not reached."""
    flops = flops_per_token(spec.shape, spec.stream)
    parameters = count_parameters(build(spec.shape, spec.stream, spec.seed, device="meta"))
    validation = recorder.validation if recorder and status is RunStatus.FINISHED else None
    rows = recorder.history.rows if recorder and recorder.history else []
    losses = [row["train_loss"] for row in rows[-LAST_STEPS:]]
    return RunRecord(
        **_identity(spec),
        run_id=start.run_id,
        parent_id=start.parent_id,
        **_sizes(parameters, flops),
        tokens=spec.tokens,
        compute=flops.total * spec.tokens,
        data_passes=inputs.data.passes(spec.tokens),
        val_loss=validation.mean if validation else None,
        val_loss_se=finite(validation.standard_error) if validation else None,
        val_tokens=inputs.windows_NT.shape[0] * (inputs.windows_NT.shape[1] - 1),
        val_bits_per_byte=inputs.data.bits_per_byte(validation.mean) if validation else None,
        train_loss=statistics.fmean(losses) if losses else None,
        status=status,
        failed_at_step=failed_at,
        attempts=start.attempts,
        wall_seconds=round(recorder.seconds(), 3) if recorder else 0.0,
        tokens_per_second=_throughput(spec, recorder),
        peak_memory_bytes=peak_memory_bytes(inputs.device),
        device=device_kind(inputs.device),
        precision=spec.train.precision,
        threads=settings.threads,
        processes=settings.processes,
        strategy=settings.strategy if settings.processes > 1 else "single",
        compile=False,  # docs/decisions/2026-11-29-compile-in-bf16.md
        kernels=_kernels(spec, inputs.device),
        torch_version=torch.__version__,
        git_sha=git_sha(),
        started_at=start.started_at,
    )


def _kernels(spec: RunSpec, device: torch.device) -> str:
    if device.type == "cpu":
        return kernels.backend()
    return fused_reads.name(device, spec.shape.width) or "torch"


def _throughput(spec: RunSpec, recorder: Recorder | None) -> float | None:
    seconds = recorder.step_seconds[COLD_STEPS:] if recorder else []
    return round(spec.train.batch_tokens / statistics.median(seconds), 1) if seconds else None


def _identity(spec: RunSpec) -> dict[str, Any]:
    train = spec.train
    return {
        "spec_id": spec.spec_id,
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
