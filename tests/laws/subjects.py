"""What the laws run on: every registered stream with every example of its options."""

import pytest
import torch

from attnres.decoder import Decoder
from attnres.initialise import build
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from attnres.streams.base import STREAMS


def small_shape(depth: int = 3, **changes) -> ModelShape:
    values = {"width": 32, "num_heads": 2, "mlp_width": 48, "vocab_size": 64, "seq_len": 12}
    return ModelShape(depth=depth, **{**values, **changes})


def subjects(shape: ModelShape) -> list[StreamSpec]:
    """Every registered stream with each of its example options."""
    return [
        StreamSpec(name=name, options=options)
        for name in STREAMS.names()
        for options in STREAMS.get(name).examples(shape)
    ]


def of_law(law: str) -> list[StreamSpec]:
    """The subjects whose stream declares ``law``; none is an error, so that no law is vacuous."""
    found = [spec for spec in subjects(small_shape()) if getattr(STREAMS.get(spec.name).laws, law)]
    assert found, f"no registered stream is subject to the law '{law}'"
    return found


def each(specs: list[StreamSpec]) -> pytest.MarkDecorator:
    """Parametrise a test over ``specs`` as ``stream_spec``, with readable ids."""
    return pytest.mark.parametrize("stream_spec", specs, ids=[spec.variant for spec in specs])


EVERY_STREAM = each(subjects(small_shape()))


def trained_like(model: Decoder, seed: int = 1) -> Decoder:
    """``model`` with its stream's parameters moved off their start: queries that choose, gains not one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.stream.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
            parameter.add_(noise.to(parameter.dtype))
    return model


def make(
    stream_spec: StreamSpec, shape: ModelShape | None = None, *, moved: bool = True, dtype=None
) -> Decoder:
    model = build(shape or small_shape(), stream_spec, seed=0)
    if dtype is not None:
        model = model.to(dtype)
    return trained_like(model) if moved else model


def batch(shape: ModelShape, sequences: int = 2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, shape.vocab_size, (sequences, shape.seq_len + 1), generator=generator)


def loss_and_gradients(model: Decoder, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}
