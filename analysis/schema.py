"""The contract of the tables under results/<study>/: every column, its type, its unit, its meaning.

``results/README.md`` is written from this file (`python -m analysis dictionary`); a test holds
`RUN_COLUMNS` to ``experiments.record.RunRecord``.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

SCHEMA_VERSION = 3

Kind = Literal["str", "int", "float", "bool"]


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    nullable: bool = False


class Status(StrEnum):
    """Status of a planned run in runs.csv; the first four are the record's, the last means no record."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    MISSING = "missing"


class Exclusion(StrEnum):
    """Why a row is left out of the fits. Rows are never dropped."""

    NONE = "none"
    DIVERGED = "diverged"
    INCOMPLETE = "incomplete"
    DUPLICATE = "duplicate"
    OFF_GRID = "off_grid"
    OUTLIER = "outlier"


RUN_COLUMNS: tuple[Column, ...] = (
    Column("spec_id", "str", "", "identity of the run: content hash of its spec"),
    Column("run_id", "str", "", "MLflow run id; empty if the store could not be reached"),
    Column("parent_id", "str", "", "spec_id of the trunk a branched run started from; else empty"),
    Column("stream", "str", "", "residual stream"),
    Column("variant", "str", "", "label of the stream with its options: the arm"),
    Column("stream_options", "str", "JSON", "options of the stream, canonical"),
    Column("dataset", "str", "", "data set"),
    Column("seed", "int", "", "seed of the initial parameters"),
    Column("data_seed", "int", "", "seed of the data order"),
    Column("numerics", "int", "", "version of the numerics: raised when a change moves any loss"),
    Column("depth", "int", "", "Transformer blocks"),
    Column("width", "int", "", "channels of the stream"),
    Column("num_heads", "int", "", "attention heads"),
    Column("mlp_width", "int", "", "hidden channels of the MLP"),
    Column("vocab_size", "int", "", "tokens in the vocabulary"),
    Column("seq_len", "int", "tokens", "context length"),
    Column("tied", "bool", "", "head shares the embedding's weights"),
    Column("params_embedding", "int", "", "parameters of the embedding (the tied matrix counts here)"),
    Column("params_decoder", "int", "", "parameters of the sublayers and norms"),
    Column("params_stream", "int", "", "parameters the residual stream adds"),
    Column("params_head", "int", "", "parameters of an untied head"),
    Column("flops_per_token_matmul", "float", "FLOPs", "training FLOPs a token of the sublayers' matrices"),
    Column("flops_per_token_attention", "float", "FLOPs", "training FLOPs a token of causal attention"),
    Column("flops_per_token_head", "float", "FLOPs", "training FLOPs a token of the head"),
    Column("flops_per_token_stream", "float", "FLOPs", "training FLOPs a token of the residual stream"),
    Column("budget", "float", "FLOPs", "asked-for training FLOPs of the baseline arm"),
    Column("tokens", "int", "tokens", "training tokens"),
    Column("compute", "float", "FLOPs", "training FLOPs of this arm: sum of the four parts x tokens"),
    Column("batch_tokens", "int", "tokens", "tokens of one optimiser step"),
    Column("steps", "int", "", "optimiser steps"),
    Column("lr", "float", "", "peak learning rate"),
    Column("warmup", "int", "steps", "linear warm-up"),
    Column("schedule", "str", "", "decay after warm-up"),
    Column("weight_decay", "float", "", "decoupled weight decay"),
    Column("recipe", "str", "", "named rule the numbers came from"),
    Column("data_passes", "float", "", "training tokens over tokens of the training split"),
    Column("val_loss", "float", "nats/token", "loss on the fixed validation tokens at the end", True),
    Column("val_loss_se", "float", "nats/token", "standard error of val_loss over sequences", True),
    Column("val_tokens", "int", "tokens", "validation tokens, the same for all runs"),
    Column("val_bits_per_byte", "float", "bits/byte", "val_loss in bits per byte of text", True),
    Column("train_loss", "float", "nats/token", "mean training loss of the last steps", True),
    Column("status", "str", "", "finished, diverged, failed, interrupted or missing"),
    Column("failed_at_step", "int", "", "step at which the run diverged or failed", True),
    Column("attempts", "int", "", "times the run was started"),
    Column("wall_seconds", "float", "s", "time spent training, over all attempts", True),
    Column("tokens_per_second", "float", "tokens/s", "median training throughput", True),
    Column("peak_memory_bytes", "int", "bytes", "peak memory of the process or the device", True),
    Column("device", "str", "", "device kind"),
    Column("precision", "str", "", "fp32 or bf16 (autocast)"),
    Column("threads", "int", "", "CPU threads", True),
    Column("processes", "int", "", "processes that shared every batch", True),
    Column("strategy", "str", "", "how they shared the model: single, ddp or fsdp", True),
    Column("compile", "bool", "", "whether torch.compile was used", True),
    Column(
        "kernels",
        "str",
        "",
        "row kernels: c, torch, or fla and its version; other rounding",
    ),
    Column("torch_version", "str", "", "torch that trained the run"),
    Column("git_sha", "str", "", "commit of the code that trained the run"),
    Column("started_at", "str", "UTC", "start of the first attempt, ISO 8601"),
    Column("schema_version", "int", "", "version of this contract"),
)

EXCLUSION_COLUMNS: tuple[Column, ...] = (
    Column("excluded", "bool", "", "left out of the fits"),
    Column(
        "exclusion_reason",
        "str",
        "",
        "none, diverged, incomplete, duplicate, off_grid or outlier (exclusions.csv)",
    ),
)

OUTLIER_COLUMNS: tuple[Column, ...] = (
    Column("spec_id", "str", "", "run of the plan that is to be left out of the fits"),
    Column("reason", "str", "", "why, in words: it stands in the report"),
)

CURVE_COLUMNS: tuple[Column, ...] = (
    Column("spec_id", "str", "", "run"),
    Column("step", "int", "", "optimiser step, each once"),
    Column("tokens", "int", "tokens", "training tokens seen after the step"),
    Column("train_loss", "float", "nats/token", "loss of the step's batch", True),
    Column("lr", "float", "", "learning rate of the step", True),
    Column("grad_norm", "float", "", "global gradient norm before clipping", True),
    Column("val_loss", "float", "nats/token", "validation loss after the step, where it was taken", True),
    Column("seconds", "float", "s", "training time since the start of the run", True),
)

MULTIPLIER_COLUMNS: tuple[Column, ...] = (
    Column("variant", "str", "", "arm"),
    Column("baseline", "str", "", "arm it is compared with"),
    Column("estimator", "str", "", "how the multiplier is estimated"),
    Column("form", "str", "", "form of the baseline curve"),
    Column("compute_axis", "str", "", "exact, 6nd, no_head, tokens or wall"),
    Column("rate", "str", "", "matched: all arms at the baseline's rate; tuned: each at its best"),
    Column("irreducible", "str", "", "rule for the irreducible loss E, and its value"),
    Column("at", "float", "FLOPs", "compute the multiplier holds at; empty if constant", True),
    Column("compute_multiplier", "float", "", "baseline compute over variant compute at equal loss", True),
    Column("lo", "float", "", "lower end of the interval", True),
    Column("hi", "float", "", "upper end of the interval", True),
    Column("level", "float", "", "nominal coverage of the interval"),
    Column("dof", "float", "", "degrees of freedom of the interval", True),
    Column("n_pairs", "int", "", "run pairs used"),
    Column("extrapolated", "bool", "", "the baseline curve had to be read outside its data"),
    Column("verdict", "str", "", "words that follow from the interval"),
    Column("status", "str", "", "converged; identical arms; exact (a control); refused: and why"),
)


DYNAMICS_COLUMNS: tuple[Column, ...] = (
    Column("step", "int", "", "optimiser step whose passes were watched, before its update"),
    Column("site", "int", "", "sublayer, 0 to 2 depth - 1; 2 depth: the read of the output"),
    Column("kind", "str", "", "attention, mlp or output; block: a whole Transformer block"),
    Column("source", "int", "", "source of a read, 0 is the embedding; -1 where there is none"),
    Column(
        "quantity",
        "str",
        "",
        "hidden, output, contribution, gradient, parameter_gradient, weight, entropy, largest_weight: "
        "definitions in docs/method.md",
    ),
    Column(
        "value",
        "float",
        "",
        "root mean square over tokens and channels; weights and entropy (nats): mean over tokens",
    ),
)


def column_names(columns: tuple[Column, ...]) -> list[str]:
    """Names of ``columns`` in order."""
    return [column.name for column in columns]
