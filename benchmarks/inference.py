"""Decode latency and prefill time over the additive baseline's."""

from collections.abc import Callable
from typing import Any

import torch

from attnres.inference import Generator
from attnres.initialise import build
from benchmarks.step import ARMS, shape_of, with_random_queries
from benchmarks.timing import interleave, ratio, row

PREFILL, DECODED, TURNS = 1024, 32, 15
BAR = 1.05


def rows() -> list[dict[str, Any]]:
    shape = shape_of("w512d8").model_copy(update={"seq_len": PREFILL + DECODED})
    models = {arm: with_random_queries(build(shape, spec, seed=0)) for arm, spec in ARMS.items()}
    prompt = torch.randint(0, shape.vocab_size, (1, PREFILL), generator=torch.Generator().manual_seed(0))
    generators = {arm: Generator(model) for arm, model in models.items()}

    def prefill(arm: str) -> Callable[[], None]:
        def run() -> None:
            generators[arm] = Generator(models[arm])
            generators[arm].extend(prompt)

        return run

    def decode(arm: str) -> Callable[[], None]:
        def run() -> None:
            generator = generators[arm]
            generator.length = PREFILL  # the same positions in every turn
            for token in prompt[0, :DECODED]:
                generator.extend(token.view(1, 1))

        return run

    found = []
    for name, task in ((f"prefill of {PREFILL}", prefill), ("decode a token", decode)):
        times = interleave({arm: task(arm) for arm in models}, turns=TURNS)
        for arm in ("block", "full"):
            measured = ratio(times, arm, "baseline")
            bar = BAR if arm == "block" else None
            found.append(row(f"{name} w512d8 {arm} / baseline", measured, bar))
    return found
