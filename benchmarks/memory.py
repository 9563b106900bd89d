"""Bytes kept for backward in one training step, counted with saved-tensor hooks, each storage once."""

from typing import Any

import torch
from torch import Tensor

from attnres.decoder import Decoder
from attnres.initialise import build
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from benchmarks.step import ARMS, BATCH, SEQ_LEN, SIZES, shape_of, training_step
from benchmarks.timing import interleave, number, ratio, row

BAR = 1.15
MORE_TIME = 1.05


def saved_bytes(model: Decoder, sequences: int = BATCH) -> int:
    """Bytes of the distinct storages that backward keeps, parameters and buffers left out."""
    tokens = torch.zeros(sequences, model.shape.seq_len, dtype=torch.long)
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers(), tokens]}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.loss(tokens, tokens)
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del loss
    return total


def model_of(shape: ModelShape, spec: StreamSpec, *, recompute: bool = False) -> Decoder:
    model = build(shape, spec, seed=0)
    for module in model.stream.modules():
        if hasattr(module, "recompute"):
            module.recompute = recompute
    return model


def rows(turns: int = 15) -> list[dict[str, Any]]:
    found = []
    for size in SIZES:
        shape = shape_of(size)
        baseline = saved_bytes(model_of(shape, ARMS["baseline"]))
        tensor = BATCH * SEQ_LEN * shape.width * 4
        found.append(number(f"saved bytes, {size} baseline, MB", baseline / 1e6))
        for arm in ("block", "full"):
            kept = saved_bytes(model_of(shape, ARMS[arm]))
            less = saved_bytes(model_of(shape, ARMS[arm], recompute=True))
            found.append(number(f"saved bytes, {size} {arm} / baseline", kept / baseline, BAR))
            block = shape.num_sublayers // 8 if arm == "block" else 1
            name = f"saved bytes beyond baseline, {size} {arm} recomputing, tensors of (B, T, D)"
            found.append(number(name, (less - baseline) / tensor, float(max(block, 1))))
    size = "w256d12"
    for arm in ("block", "full"):
        steps = {
            name: training_step(model_of(shape_of(size), ARMS[arm], recompute=name == "recomputing"), "fp32")
            for name in ("recomputing", "keeping")
        }
        times = interleave(steps, turns=turns)
        found.append(
            row(
                f"step {size} {arm}: recomputing / keeping", ratio(times, "recomputing", "keeping"), MORE_TIME
            )
        )
    return found
