"""What became of a run: one flat record, written once, whole, together with its status."""

import math
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from attnres.errors import UserError
from attnres.files import write_json
from attnres.json_files import read_model

SCHEMA_VERSION = 3
"""2: `RunRecord.kernels`. 3: `RunRecord.processes` and `RunRecord.strategy`."""
RECORD_FILE = "record.json"


class RunStatus(StrEnum):
    """Terminal states of a run.

    ``finished`` means: the planned tokens were trained, the schedule reached its end and the final
    validation was written.
    """

    FINISHED = "finished"
    DIVERGED = "diverged"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def done(self) -> bool:
        """Nothing is left to train: a diverged run would only diverge again."""
        return self in (RunStatus.FINISHED, RunStatus.DIVERGED)


class RunRecord(BaseModel):
    """One row of runs.csv. SI base units: FLOPs, tokens, seconds, bytes, nats a token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec_id: str
    run_id: str
    """MLflow's id of the run; empty if the store could not be reached."""
    parent_id: str
    """`spec_id` of the trunk this run branched from; empty for a run of its own."""
    stream: str
    variant: str
    stream_options: str
    """Canonical JSON of the options."""
    dataset: str
    seed: int
    data_seed: int
    numerics: int

    depth: int
    width: int
    num_heads: int
    mlp_width: int
    vocab_size: int
    seq_len: int
    tied: bool

    params_embedding: int
    params_decoder: int
    params_stream: int
    params_head: int

    flops_per_token_matmul: float
    flops_per_token_attention: float
    flops_per_token_head: float
    flops_per_token_stream: float

    budget: float
    tokens: int
    compute: float
    batch_tokens: int
    steps: int
    lr: float
    warmup: int
    schedule: str
    weight_decay: float
    recipe: str
    data_passes: float

    val_loss: float | None
    val_loss_se: float | None
    val_tokens: int
    val_bits_per_byte: float | None
    train_loss: float | None

    status: RunStatus
    failed_at_step: int | None
    attempts: int = Field(ge=1)
    wall_seconds: float
    tokens_per_second: float | None
    peak_memory_bytes: int
    device: str
    precision: str
    threads: int
    processes: int
    """That shared every batch."""
    strategy: str
    """``single``, ``ddp`` or ``fsdp``: how they shared the model (`experiments.parallel`)."""
    compile: bool
    kernels: str
    """``c``, ``torch`` or ``fla 0.5.2``: what the row kernels ran on (`attnres.kernels`, `fused_reads`)."""
    torch_version: str
    git_sha: str
    started_at: str
    """ISO 8601, UTC."""
    schema_version: int = SCHEMA_VERSION

    @model_validator(mode="after")
    def _check_compute(self) -> "RunRecord":
        per_token = (
            self.flops_per_token_matmul
            + self.flops_per_token_attention
            + self.flops_per_token_head
            + self.flops_per_token_stream
        )
        if not math.isclose(self.compute, per_token * self.tokens, rel_tol=1e-12):
            raise ValueError(f"compute {self.compute} is not the sum of its parts x tokens")
        if self.status is RunStatus.FINISHED and (self.val_loss is None or not math.isfinite(self.val_loss)):
            raise ValueError("a finished run has a finite validation loss")
        return self


def write_record(run_dir: Path, record: RunRecord) -> None:
    """Write ``record`` and with it the status: whole or not at all."""
    write_json(run_dir / RECORD_FILE, record.model_dump(mode="json"))


def read_record(run_dir: Path) -> RunRecord | None:
    """The record of ``run_dir`` (named after its run), or None if the run has not ended yet.

    Raises:
        UserError: it cannot be read, is damaged, or is that of another run.
    """
    path = run_dir / RECORD_FILE
    if not path.exists():
        return None
    advice = "restore it, or delete it: the run then goes on from its newest checkpoint"
    _check_version(path, advice)
    record = read_model(path, RunRecord, advice)
    if record.spec_id != run_dir.name:
        raise UserError(f"{path}: is the record of run {record.spec_id}; {advice}")
    return record


class _Versioned(BaseModel):
    """The one field that every version of a record has."""

    schema_version: int = SCHEMA_VERSION


def _check_version(path: Path, advice: str) -> None:
    found = read_model(path, _Versioned, advice).schema_version
    if found != SCHEMA_VERSION:
        raise UserError(
            f"{path}: a record of schema {found}, this code reads {SCHEMA_VERSION}; read it with the code "
            "that wrote it, or move the run's folder away to train it anew"
        )
