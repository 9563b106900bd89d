"""Training step of each stream over the additive baseline's: forward, backward, clip and fused AdamW."""

from collections.abc import Callable
from typing import Any

import torch

from attnres.decoder import Decoder
from attnres.initialise import build
from attnres.parameters import parameter_groups
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from benchmarks.timing import interleave, ratio, row

BATCH, SEQ_LEN, VOCABULARY = 8, 256, 256
ARMS = {
    "baseline": StreamSpec(name="additive"),
    "block": StreamSpec(name="block_attnres", options={"num_blocks": 8}),
    "full": StreamSpec(name="full_attnres"),
}
SIZES = {"w256d12": (256, 12, 4), "w512d8": (512, 8, 8)}
BARS = {
    ("fp32", "w256d12", "block"): 1.10,
    ("fp32", "w512d8", "block"): 1.05,
    ("fp32", "w256d12", "full"): 1.25,
    ("fp32", "w512d8", "full"): 1.15,
    ("bf16", "w256d12", "block"): 1.15,
    ("bf16", "w512d8", "block"): 1.15,
    ("bf16", "w256d12", "full"): 1.35,
    ("bf16", "w512d8", "full"): 1.35,
}


def shape_of(size: str) -> ModelShape:
    width, depth, heads = SIZES[size]
    return ModelShape(
        depth=depth,
        width=width,
        num_heads=heads,
        mlp_width=round(width * 8 / 3 / 8) * 8,
        vocab_size=VOCABULARY,
        seq_len=SEQ_LEN,
    )


def training_step(model: Decoder, precision: str) -> Callable[[], None]:
    """One step on a fixed batch."""
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), lr=1e-4, fused=True)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    return step


def with_random_queries(model: Decoder) -> Decoder:
    """Queries off zero, as in training."""
    with torch.no_grad():
        for name, parameter in model.stream.named_parameters():
            if name.endswith("pseudo_queries"):
                parameter.normal_(0, 0.02)
    return model


def rows(turns: int = 9) -> list[dict[str, Any]]:
    found = []
    for precision in ("fp32", "bf16"):
        for size in SIZES:
            steps = {
                arm: training_step(with_random_queries(build(shape_of(size), spec, seed=0)), precision)
                for arm, spec in ARMS.items()
            }
            times = interleave(steps, turns=turns)
            for arm in ("block", "full"):
                measured = ratio(times, arm, "baseline")
                name = f"step {precision} {size} {arm} / baseline ({measured.baseline_seconds:.2f} s)"
                found.append(row(name, measured, BARS[precision, size, arm]))
    return found
