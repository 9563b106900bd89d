"""Initial parameters, drawn by *name*: what two arms share starts bit-identical, whatever else they have.

| parameter | start |
|---|---|
| norm gains | 1 |
| embedding | normal, std 1 (tied: 1/sqrt(width), since it is the head as well) |
| matrices | normal, std 1/sqrt(inputs) |
| output matrices of sublayers | the same over sqrt(2 depth): the sum of all outputs keeps unit scale |
| head | normal, std 1/width: logits start near zero, the loss near ln(vocabulary) |
| parameters of the stream | as the stream says (pseudo-queries: exactly 0) |
"""

import hashlib

import torch
from torch import Tensor

from attnres.decoder import Decoder
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec


def build(
    shape: ModelShape, stream_spec: StreamSpec, seed: int, device: torch.device | str | None = None
) -> Decoder:
    """A decoder with initial parameters; on the ``meta`` device it has shapes and no values."""
    with torch.device(device or "cpu"):
        model = Decoder(shape, stream_spec)
    if model.embedding.device.type != "meta":
        initialise(model, seed)
    return model


@torch.no_grad()
def initialise(model: Decoder, seed: int) -> None:
    """Fill every parameter of ``model`` from a generator seeded by (``seed``, its name), and its buffers."""
    for name, parameter in model.named_parameters():
        start = model.stream.initialise(name.removeprefix("stream.")) if name.startswith("stream.") else None
        parameter.copy_(start if start is not None else _draw(name, parameter.shape, model.shape, seed))
    model.fill_rotary_tables()


def _draw(name: str, size: torch.Size, shape: ModelShape, seed: int) -> Tensor:
    if name.endswith("gain"):
        return torch.ones(size)
    generator = torch.Generator().manual_seed(_name_seed(seed, name))
    return torch.randn(size, generator=generator) * _std(name, size, shape)


def _name_seed(seed: int, name: str) -> int:
    """63 bits of SHA-256 over seed and name: independent streams for every parameter."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") >> 1


def _std(name: str, size: torch.Size, shape: ModelShape) -> float:
    if name == "embedding":
        return float(shape.width**-0.5) if shape.tied else 1.0
    if name == "head.weight":
        return 1 / shape.width
    std: float = size[-1] ** -0.5
    if name.startswith("sublayers.") and name.endswith("out.weight"):
        std /= shape.num_sublayers**0.5
    return std
