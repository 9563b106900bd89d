"""Parameters and FLOPs against the modules and torch's operator counter (law 9)."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnres.accounting import (
    count_parameters,
    estimate_memory_bytes,
    flops_per_token,
    kept_per_token,
    parameters_of,
)
from attnres.constants import NORM_EPSILON
from attnres.initialise import build
from attnres.kernels import only_torch
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from attnres.streams.base import STREAMS
from benchmarks.memory import saved_bytes
from tests.laws.subjects import EVERY_STREAM, batch, each, make, small_shape, subjects

SHAPE = ModelShape(depth=3, width=64, num_heads=4, mlp_width=172, vocab_size=96, seq_len=32)


@EVERY_STREAM
@pytest.mark.parametrize("tied", [False, True])
def test_s06_law_9_parameters_equal_the_closed_form(stream_spec: StreamSpec, tied: bool) -> None:
    shape = small_shape(tied=tied)
    model = build(shape, stream_spec, seed=0)
    counted = count_parameters(model)
    assert counted == parameters_of(shape, stream_spec)
    assert counted == count_parameters(build(shape, stream_spec, seed=0, device="meta"))
    assert counted.total == sum(parameter.numel() for parameter in model.parameters())
    assert (counted.head == 0) == tied


@pytest.fixture(scope="module")
def counted_step() -> dict[str, dict]:
    """Operator counts of a training step of the additive model, by module."""
    model = make(StreamSpec(name="additive"), SHAPE)
    tokens = batch(SHAPE, sequences=2)
    counter = FlopCounterMode(display=False, depth=4)
    with only_torch(), sdpa_kernel(SDPBackend.MATH), counter:
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    return counter.get_flop_counts()


def test_s04_law_9_flops_of_matrices_attention_and_head_agree_with_the_counter(counted_step: dict) -> None:
    tokens = 2 * SHAPE.seq_len
    flops = flops_per_token(SHAPE, StreamSpec(name="additive"))
    total: dict[str, int] = {}
    for operator, value in counted_step["Global"].items():
        total[str(operator)] = value
    products = sum(value for name, value in total.items() if "mm" in name and "bmm" not in name)
    scores = sum(value for name, value in total.items() if "bmm" in name)
    assert set(total) <= {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"}
    causal = (SHAPE.seq_len + 1) / 2 / SHAPE.seq_len  # the counter sees the full square
    assert flops.matmul + flops.head == pytest.approx(products / tokens, rel=1e-2)
    assert flops.attention == pytest.approx(scores * causal / tokens, rel=1e-2)
    head = 3 * 2 * SHAPE.width * SHAPE.vocab_size
    assert flops.head == pytest.approx(head, rel=1e-12)
    linear = [
        value
        for name, counts in counted_step.items()
        if name.endswith(("qkv", "out", "gate_up"))
        for operator, value in counts.items()
    ]
    assert linear
    assert flops.matmul == pytest.approx(sum(linear) / tokens, rel=1e-2)
    assert flops.head == pytest.approx((products - sum(linear)) / tokens, rel=1e-2)


@each(subjects(SHAPE))
def test_s04_law_9_flops_of_the_stream_agree_with_the_counter_on_contractions(
    stream_spec: StreamSpec,
) -> None:
    """Every read as einsum products, and every new source's mean square as one: what the closed form counts.

    A stream without depth attention has no contraction. A control that throws its attention's result away
    is held to the arm whose price it pays, below.
    """
    stream = make(stream_spec, SHAPE).stream
    laws = STREAMS.get(stream_spec.name).laws
    if not laws.cached_logits:
        assert laws.equals_additive, "how many FLOPs this stream takes must be counted here"
        parameters = sum(parameter.numel() for parameter in stream.parameters())
        assert (flops_per_token(SHAPE, stream_spec).stream == 0) == (parameters == 0)
        return
    tokens = 6
    made: dict[str, Tensor] = {}
    scale: dict[str, Tensor] = {}
    queries = torch.randn(SHAPE.num_sublayers + 1, SHAPE.width, requires_grad=True)
    counter = FlopCounterMode(display=False)
    total = torch.zeros(())
    with counter:
        for site in range(SHAPE.num_sublayers + 1):
            names = stream.sources(site)
            for name in names:
                if name not in made:
                    made[name] = torch.randn(tokens, SHAPE.width, requires_grad=True)
                    square = torch.einsum("xd,xd->x", made[name], made[name])
                    scale[name] = (square / SHAPE.width + NORM_EPSILON).rsqrt()
            values = torch.stack([made[name] for name in names])
            logits = torch.einsum("d,nxd->nx", queries[site], values) * torch.stack([scale[n] for n in names])
            total = total + torch.einsum("nx,nxd->xd", logits.softmax(0), values).square().sum()
        total.backward()
    one_source = 3 * 2 * SHAPE.width  # einsum over the one source of the first read multiplies: not counted
    counted = counter.get_total_flops() / tokens + one_source
    assert flops_per_token(SHAPE, stream_spec).stream == pytest.approx(counted, rel=1e-2)


@pytest.mark.parametrize(
    ("options", "paid"),
    [
        ({}, StreamSpec(name="full_attnres")),
        ({"num_blocks": 2}, StreamSpec(name="block_attnres", options={"num_blocks": 2})),
    ],
    ids=["full", "blocks"],
)
def test_the_overhead_only_control_costs_what_the_arm_it_stands_for_costs(
    options: dict[str, int], paid: StreamSpec
) -> None:
    control = StreamSpec(name="overhead_only", options=options)
    assert flops_per_token(SHAPE, control) == flops_per_token(SHAPE, paid)
    assert parameters_of(SHAPE, control) == parameters_of(SHAPE, paid)


@EVERY_STREAM
def test_s05_doubling_the_context_changes_attention_as_documented_and_nothing_else(
    stream_spec: StreamSpec,
) -> None:
    """Causal: a token sees (T + 1) / 2 positions, 4 d forward FLOPs each, three times that in training."""
    twice = SHAPE.model_copy(update={"seq_len": 2 * SHAPE.seq_len})
    short, long = flops_per_token(SHAPE, stream_spec), flops_per_token(twice, stream_spec)
    assert long.attention - short.attention == 3 * SHAPE.depth * 4 * SHAPE.width * SHAPE.seq_len / 2
    assert (long.matmul, long.head, long.stream) == (short.matmul, short.head, short.stream)


@EVERY_STREAM
def test_s06_tying_saves_exactly_one_table_in_every_arm(stream_spec: StreamSpec) -> None:
    tied, untied = (parameters_of(SHAPE.model_copy(update={"tied": t}), stream_spec) for t in (True, False))
    assert untied.total - tied.total == SHAPE.vocab_size * SHAPE.width
    assert (untied.decoder, untied.stream, untied.embedding) == (tied.decoder, tied.stream, tied.embedding)


def test_full_costs_about_8_depth_squared_width_forward() -> None:
    deep = SHAPE.model_copy(update={"depth": 40})
    flops = flops_per_token(deep, StreamSpec(name="full_attnres"))
    assert flops.stream / 3 == pytest.approx(8 * 40**2 * 64, rel=0.06)


def test_flops_need_no_memory_and_no_build() -> None:
    huge = ModelShape(
        depth=100, width=16384, num_heads=128, mlp_width=65536, vocab_size=200_000, seq_len=8192
    )
    flops = flops_per_token(huge, StreamSpec(name="full_attnres"))
    assert flops.total > 6 * parameters_of(huge, StreamSpec(name="full_attnres")).decoder


@EVERY_STREAM
def test_r11_the_memory_estimate_grows_with_batch_and_covers_the_parameters(stream_spec: StreamSpec) -> None:
    estimates = [estimate_memory_bytes(SHAPE, stream_spec, tokens) for tokens in (0, 1000, 2000)]
    assert estimates[0] == 16 * parameters_of(SHAPE, stream_spec).total
    steps = [after - before for before, after in pairwise(estimates)]
    assert steps[0] == steps[1] > 0


@EVERY_STREAM
def test_r11_what_a_token_keeps_equals_the_counted_bytes(stream_spec: StreamSpec) -> None:
    sequences = 2
    counted = saved_bytes(build(SHAPE, stream_spec, seed=0), sequences)
    tokens = sequences * SHAPE.seq_len
    assert 4 * tokens * kept_per_token(SHAPE, stream_spec) == pytest.approx(counted, rel=0.01)
