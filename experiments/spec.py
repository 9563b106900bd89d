"""What a run is: everything that can change its result, frozen, hashed, and nothing else.

Operational settings (threads, device, workers, compile, folders) are not here: they are recorded,
not hashed, so that a run may move to another machine and stay the same run.
"""

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from attnres.frozen import Frozen
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec

NUMERICS = 1
"""Raised when a change moves any loss of any run; golden trajectories guard it, so that a mended bug
never reuses old runs."""

SPEC_ID_LENGTH = 12
LARGEST_INTEGER = 2**63 - 1
"""Of tables; orders are drawn from 64 bits, so that larger seeds would repeat smaller ones."""


Schedule = Literal["cosine", "linear", "constant", "wsd"]
"""What the learning rate does after warm-up. wsd: nothing (stable), then a linear decay (the cooldown)."""


class TrainSpec(Frozen):
    """How a run is trained: resolved numbers, not rules (`experiments.recipes` holds the rules)."""

    recipe: str
    """Name of the recipe the numbers came from."""
    batch_tokens: int = Field(ge=1)
    """Tokens of one optimiser step, over all devices and micro-batches."""
    lr: float = Field(gt=0, allow_inf_nan=False)
    """Peak learning rate."""
    warmup: int = Field(ge=0)
    """Steps of linear warm-up."""
    schedule: Schedule
    """Decay from the peak to ``lr * lr_floor`` over the steps after warm-up; of wsd over the last of them."""
    cooldown: int | None = Field(default=None, ge=1)
    """Steps of wsd's decay, the last of the run; other schedules have none, and do not write it."""
    lr_floor: float = Field(ge=0, le=1, allow_inf_nan=False)
    """Last learning rate as a share of the peak."""
    weight_decay: float = Field(ge=0, allow_inf_nan=False)
    """Decoupled decay of the matrices; norm gains and pseudo-queries are never decayed."""
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    grad_clip: float = Field(gt=0, allow_inf_nan=False)
    """Largest global gradient norm."""
    precision: Literal["fp32", "bf16"]
    """bf16: autocast of the products; parameters, moments and statistics stay fp32."""

    @model_validator(mode="after")
    def _check_cooldown(self) -> "TrainSpec":
        if self.schedule == "wsd" and self.cooldown is None:
            raise ValueError("schedule wsd needs a cooldown: its number of steps")
        if self.schedule != "wsd" and self.cooldown is not None:
            raise ValueError(f"cooldown {self.cooldown}: schedule {self.schedule} has none; only wsd does")
        return self

    @model_serializer(mode="wrap")
    def _without_empty_cooldown(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As before there was a cooldown: the hash of every other run is what it was."""
        fields: dict[str, Any] = write(self)
        if self.cooldown is None:
            del fields["cooldown"]
        return fields


class RunSpec(Frozen):
    """One planned run. Two specs are the same run if and only if their `spec_id` is equal.

    A paired arm is ``spec.model_copy(update={"stream": other})``: it differs in nothing else.
    """

    shape: ModelShape
    stream: StreamSpec
    dataset: str
    seed: int = Field(ge=0, le=LARGEST_INTEGER)
    """Seeds the initial parameters, by name."""
    data_seed: int = Field(ge=0, le=LARGEST_INTEGER)
    """Seeds the order of the training data."""
    budget: float = Field(gt=0, allow_inf_nan=False)
    """Nominal training FLOPs of the baseline arm."""
    tokens: int = Field(ge=1, le=LARGEST_INTEGER)
    """Training tokens: a whole number of batches."""
    train: TrainSpec
    numerics: int = NUMERICS

    @model_validator(mode="after")
    def _check_batches(self) -> "RunSpec":
        if self.train.batch_tokens % self.shape.seq_len:
            raise ValueError(
                f"batch_tokens {self.train.batch_tokens} is not a multiple of seq_len {self.shape.seq_len}"
            )
        if self.tokens % self.train.batch_tokens:
            raise ValueError(
                f"tokens {self.tokens} is not a whole number of batches of {self.train.batch_tokens}"
            )
        if self.train.warmup >= self.steps:
            raise ValueError(f"warmup of {self.train.warmup} steps leaves none of {self.steps} to decay")
        if self.train.warmup + (self.train.cooldown or 0) > self.steps:
            raise ValueError(
                f"warmup of {self.train.warmup} and cooldown of {self.train.cooldown} steps are more than "
                f"the run's {self.steps}"
            )
        return self

    @property
    def steps(self) -> int:
        """Optimiser steps of the run."""
        return self.tokens // self.train.batch_tokens

    @property
    def stable_steps(self) -> int:
        """Steps before the cooldown; all steps of a schedule without one."""
        return self.steps - (self.train.cooldown or 0)

    @property
    def batch_sequences(self) -> int:
        """Sequences of one optimiser step."""
        return self.train.batch_tokens // self.shape.seq_len

    def canonical_json(self) -> str:
        """The spec as JSON with sorted keys and no spaces: the text that is hashed."""
        return json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False
        )

    @property
    def spec_id(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of `canonical_json`."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:SPEC_ID_LENGTH]

    @property
    def pair_id(self) -> str:
        """`spec_id` of this run with the additive stream: equal for the arms of one pair."""
        return self.model_copy(update={"stream": StreamSpec(name="additive")}).spec_id
