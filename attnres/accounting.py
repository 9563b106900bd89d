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
    return _parameters(shape, stream_spec.model_dump_json())


@lru_cache(maxsize=4096)
def _parameters(shape: ModelShape, stream_json: str) -> ParameterCount:
    with torch.device("meta"):
        stream = StreamSpec.model_validate_json(stream_json).build(shape)
    width = shape.width
    block = 4 * width * width + 3 * width * shape.mlp_width + 2 * width
    table = shape.vocab_size * width
    return ParameterCount(
        embedding=table,
        decoder=shape.depth * block + width,
        stream=sum(parameter.numel() for parameter in stream.parameters()),
        head=0 if shape.tied else table,
    )


def kept_per_token(shape: ModelShape, stream_spec: StreamSpec) -> int:
    """fp32 numbers a token that one training step keeps for backward, each once.

    At an attention its norm's input, inverse RMS and result, q, k, v, the mixed values and their
    log-sum-exps; at an MLP the norm's, gate, up and their product; at the end the norm's and the logits'
    log-softmax; and what the stream keeps besides. Under bf16 autocast it is less.
    """
    return _kept(shape, stream_spec.model_dump_json())


@lru_cache(maxsize=4096)
def _kept(shape: ModelShape, stream_json: str) -> int:
    with torch.device("meta"):
        stream = StreamSpec.model_validate_json(stream_json).build(shape)
    normed = 2 * shape.width + 1
    attention = normed + 4 * shape.width + shape.num_heads
    mlp = normed + 3 * shape.mlp_width
    return shape.depth * (attention + mlp) + normed + shape.vocab_size + stream.kept_per_token()


def estimate_memory_bytes(shape: ModelShape, stream_spec: StreamSpec, batch_tokens: int) -> int:
    """Peak of an fp32 training step with AdamW on ``batch_tokens`` tokens in one forward pass.

    16 bytes a parameter (itself, gradient, two moments), what backward keeps (`kept_per_token`), and the
    most that lives for a moment: the gradients at the head (of the log-softmax and of the logits) or in
    an MLP (of gate, up and their product, of its input and its output).
    """
    moment = max(2 * shape.vocab_size, 3 * shape.mlp_width + 2 * shape.width)
    kept = kept_per_token(shape, stream_spec)
    return 16 * parameters_of(shape, stream_spec).total + 4 * (kept + moment) * batch_tokens


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
