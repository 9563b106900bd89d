"""Law 8, second half (case R15): torch.compile changes neither loss nor gradients and does not recompile.

The quick tests trace through Dynamo and AOT autograd without generating code; the slow ones compile the
deep model for real, in fp32 and bf16 autocast: a stack-and-einsum mixing was seen to give NaN query
gradients there (torch 2.13, 12 blocks), while its loss was right.
"""

import pytest
import torch
from torch._dynamo.utils import counters

from attnres.decoder import Decoder
from attnres.stream_spec import StreamSpec
from attnres.streams.base import STREAMS
from tests.laws.subjects import batch, make, small_shape

DEEP = 12
PARITY = {"fp32": 1e-4, "bf16": 0.1}
"""Largest gap of a parameter's gradient, relative: rounding, which bf16 products do in another order."""


def each_stream(depth: int) -> list[StreamSpec]:
    """Every stream once, by its last example."""
    shape = small_shape(depth)
    return [StreamSpec(name=name, options=STREAMS.get(name).examples(shape)[-1]) for name in STREAMS.names()]


def step(
    model: Decoder, loss_of, tokens: torch.Tensor, precision: str
) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = loss_of(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return loss.item(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_compiled_equals_eager(stream_spec: StreamSpec, depth: int, precision: str, backend: str) -> None:
    torch._dynamo.reset()
    counters.clear()
    shape = small_shape(depth)
    model, tokens = make(stream_spec, shape), batch(shape)
    loss, gradients = step(model, model.loss, tokens, precision)
    compiled = torch.compile(model.loss, backend=backend)
    for _ in range(2):
        compiled_loss, compiled_gradients = step(model, compiled, tokens, precision)
    graphs = counters["stats"]["unique_graphs"]
    for seed in (1, 2):
        step(model, compiled, batch(shape, seed=seed), precision)
    assert counters["stats"]["unique_graphs"] == graphs == 1, "recompiled after step 2"
    assert not counters["graph_break"]
    assert abs(compiled_loss - loss) < (1e-5 if precision == "fp32" else 1e-2)
    for name, gradient in gradients.items():
        gap = (compiled_gradients[name] - gradient).norm() / gradient.norm().clamp_min(1e-6)
        assert gap < PARITY[precision], f"gradient of {name}: {gap:.1e}"  # NaN fails too


@pytest.mark.parametrize("stream_spec", each_stream(1), ids=lambda spec: spec.name)
def test_law_8_r15_traced_and_eager_steps_agree(stream_spec: StreamSpec) -> None:
    assert_compiled_equals_eager(stream_spec, 1, "bf16", "aot_eager")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("precision", list(PARITY))
@pytest.mark.parametrize("stream_spec", each_stream(DEEP), ids=lambda spec: spec.name)
def test_law_8_r15_compiled_and_eager_steps_agree_at_depth_12(
    stream_spec: StreamSpec, precision: str
) -> None:
    assert_compiled_equals_eager(stream_spec, DEEP, precision, "inductor")
