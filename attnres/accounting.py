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
    """Unique parameters of ``model`` by part; the parts add up to all there are."""
    parts = {"embedding": 0, "decoder": 0, "stream": 0, "head": 0}
    for name, parameter in model.named_parameters():
        part = name.partition(".")[0]
        parts[part if part in parts else "decoder"] += parameter.numel()
    count = ParameterCount(**parts)
    assert count.total == sum(parameter.numel() for parameter in model.parameters())
    return count


def parameters_of(shape: ModelShape, stream_spec: StreamSpec) -> ParameterCount:
    """`count_parameters` in closed form: nothing but the stream's own module is made, without storage."""
    with torch.device("meta"):
        stream = stream_spec.build(shape)
    width = shape.width
    block = 4 * width * width + 3 * width * shape.mlp_width + 2 * width
    table = shape.vocab_size * width
    return ParameterCount(
        embedding=table,
        decoder=shape.depth * block + width,
        stream=sum(parameter.numel() for parameter in stream.parameters()),
        head=0 if shape.tied else table,
    )


def estimate_memory_bytes(shape: ModelShape, stream_spec: StreamSpec, batch_tokens: int) -> int:
    """Peak of an fp32 training step with AdamW: 16 bytes a parameter and what backward needs, kept once.

    A token keeps, in widths: at the attention its norm's input and result, q, k, v and the mixed values
    (6 with their transposed copy: 7); at the MLP norm input and result (2); gate, up and their product (3
    mlp_widths); whatever tensors the stream stores besides; at the head two widths
    and three vocabularies (logits, their log-softmax, its gradient).
    """
    with torch.device("meta"):
        stored = stream_spec.build(shape).stored_sources()
    widths = shape.depth * 9 + 2 + stored
    values = widths * shape.width + shape.depth * 3 * shape.mlp_width + 3 * shape.vocab_size
    return 16 * parameters_of(shape, stream_spec).total + 4 * values * batch_tokens


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
