"""Parameters and training FLOPs by part, from closed forms that tests hold to the modules."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from attnres.decoder import Decoder
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec

BACKWARD_FACTOR = 3
"""Training FLOPs over forward FLOPs: the backward pass of a product is two products."""


@dataclass(frozen=True)
class ParameterCount:
    """Unique parameters by part; a tied head is counted in the embedding."""

    embedding: int
    decoder: int
    stream: int
    head: int

    @property
    def total(self) -> int:
        """All unique parameters."""
        return self.embedding + self.decoder + self.stream + self.head


@dataclass(frozen=True)
class FlopCount:
    """Training FLOPs a token (forward and backward) by part.

    ``matmul``: matrices of the sublayers; ``attention``: scores and values, causal, so that a token sees
    (T + 1) / 2 positions on average; ``head``: the output matrix; ``stream``: depth mixing. Norms,
    activations, rotations and additions are not counted, in any arm.
    """

    matmul: float
    attention: float
    head: float
    stream: float

    @property
    def total(self) -> float:
        """All parts."""
        return self.matmul + self.attention + self.head + self.stream


def count_parameters(model: Decoder) -> ParameterCount:
    """Unique parameters of ``model`` by part."""
    parts = {"embedding": 0, "decoder": 0, "stream": 0, "head": 0}
    for name, parameter in model.named_parameters():
        part = name.partition(".")[0]
        parts[part if part in parts else "decoder"] += parameter.numel()
    return ParameterCount(**parts)


@lru_cache(maxsize=4096)
def _flops(shape: ModelShape, stream_json: str) -> FlopCount:
    with torch.device("meta"):
        stream = StreamSpec.model_validate_json(stream_json).build(shape)
    width = shape.width
    block = 2 * width * 4 * width + 2 * 3 * width * shape.mlp_width
    attention = 4 * width * (shape.seq_len + 1) / 2
    return FlopCount(
        matmul=float(BACKWARD_FACTOR * shape.depth * block),
        attention=BACKWARD_FACTOR * shape.depth * attention,
        head=float(BACKWARD_FACTOR * 2 * width * shape.vocab_size),
        stream=float(stream.flops_per_token()),
    )


def flops_per_token(shape: ModelShape, stream_spec: StreamSpec) -> FlopCount:
    """Training FLOPs a token of a model of ``shape`` with the stream of ``stream_spec``."""
    return _flops(shape, stream_spec.model_dump_json())
