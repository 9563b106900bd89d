"""The depth-mixing operator against its definition (law 4; cases R01, R12, R20)."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from attnres import kernels
from attnres.block_partition import partition
from attnres.depth_attention import DepthAttention
from attnres.mixing import reference_mix
from attnres.norm import RMSNorm
from attnres.stream_spec import StreamSpec
from tests.laws.subjects import batch, loss_and_gradients, make, small_shape

WIDTH = 8
pytestmark = pytest.mark.usefixtures("backend")


@pytest.fixture(params=["c", "torch"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test of the operator runs on the C kernels and on plain torch."""
    if request.param == "c":
        assert kernels.backend() == "c", "the C kernels do not compile here"
        yield "c"
    else:
        with kernels.only_torch():
            yield "torch"


def attention_of(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> DepthAttention:
    attention = DepthAttention(WIDTH, sum(sizes), sizes).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype))
    return attention


def inputs_of(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-1, 1, sum(sizes) + 1, dtype=dtype)
    return [
        (torch.randn(2, 3, WIDTH, generator=generator, dtype=dtype) * scale).requires_grad_()
        for scale in scales
    ]


def fast_reads(attention: DepthAttention, tensors: list[Tensor]) -> list[Tensor]:
    """h of every read; sublayer outputs depend on the reads, as in a model."""
    state, reads = attention.start(tensors[0]), []
    for site, output in enumerate(tensors[1:]):
        reads.append(attention.read(state, site))
        state = attention.write(state, site, output + reads[-1].tanh())
    return [*reads, attention.read(state, len(tensors) - 1)]


def reference_reads(attention: DepthAttention, tensors: list[Tensor]) -> list[Tensor]:
    """The same from `reference_mix` and the written rule for sources, with lists of sources."""
    finished, running, reads = [tensors[0]], None, []
    for site in range(len(tensors)):
        if site in attention.starts and running is not None:
            finished, running = [*finished, running], None
        sources = finished if running is None else [*finished, running]
        reads.append(reference_mix(sources, attention.pseudo_queries[site], attention.key_gains[site]))
        if site < len(tensors) - 1:
            output = tensors[site + 1] + reads[-1].tanh()
            running = output if running is None else running + output
    return reads


def outputs_and_gradients(
    reads_of: Callable[[DepthAttention, list[Tensor]], list[Tensor]],
    attention: DepthAttention,
    tensors: list[Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    reads = reads_of(attention, tensors)
    loss = sum((read * (index + 1)).sin().sum() for index, read in enumerate(reads))
    return reads, list(torch.autograd.grad(loss, [*tensors, *attention.parameters()]))


def assert_equal_to_reference(sizes: tuple[int, ...]) -> None:
    attention, tensors = attention_of(sizes), inputs_of(sizes)
    fast, fast_gradients = outputs_and_gradients(fast_reads, attention, tensors)
    slow, slow_gradients = outputs_and_gradients(reference_reads, attention, tensors)
    for one, other in zip([*fast, *fast_gradients], [*slow, *slow_gradients], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("depth", range(1, 10))
@pytest.mark.parametrize("block_size", [1, 2, 3, 5, None])
def test_r01_law_4_outputs_and_gradients_equal_the_definition(depth: int, block_size: int | None) -> None:
    sublayers = 2 * depth
    assert_equal_to_reference(partition(sublayers, block_size=block_size or sublayers))


@pytest.mark.parametrize("sizes", [(1, 3, 2), (2, 1, 1, 4), (5, 1)])
def test_r01_unequal_blocks_equal_the_definition(sizes: tuple[int, ...]) -> None:
    assert_equal_to_reference(sizes)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1), (3,)])
def test_gradcheck(sizes: tuple[int, ...]) -> None:
    attention, tensors = attention_of(sizes), inputs_of(sizes)

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        queries, gains, *tensors = values
        parameters = {"pseudo_queries": queries, "key_gains": gains}
        state = torch.func.functional_call(
            Reads(attention), {f"attention.{k}": v for k, v in parameters.items()}, (tensors,)
        )
        return tuple(state)

    assert torch.autograd.gradcheck(function, (*attention.parameters(), *tensors))


class Reads(torch.nn.Module):
    def __init__(self, attention: DepthAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        return fast_reads(self.attention, tensors)


def test_a_second_derivative_is_refused() -> None:
    attention, tensors = attention_of((1, 1)), inputs_of((1, 1))
    loss = sum(read.square().sum() for read in fast_reads(attention, tensors))
    (gradient,) = torch.autograd.grad(loss, tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_backward_from_some_reads_only_reaches_what_they_saw() -> None:
    sizes = (2, 2)
    attention, tensors = attention_of(sizes), inputs_of(sizes)
    for wanted in ([1], [0, 3], [2, 4], [4]):
        fast = [fast_reads(attention, tensors)[index] for index in wanted]
        slow = [reference_reads(attention, tensors)[index] for index in wanted]
        leaves = [*tensors, *attention.parameters()]
        for one, other in zip(
            torch.autograd.grad(sum(h.sin().sum() for h in fast), leaves, allow_unused=True),
            torch.autograd.grad(sum(h.sin().sum() for h in slow), leaves, allow_unused=True),
            strict=True,
        ):
            if other is None or one is None:
                assert (one is None or one.abs().max() == 0) and (other is None or other.abs().max() == 0)
            else:
                torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("sizes", [(1, 2, 2), (1, 1, 1, 1, 1, 1), (3, 1)])
def test_r12_read_with_the_norm_equals_read_then_norm(sizes: tuple[int, ...], recompute: bool) -> None:
    attention, tensors = attention_of(sizes), inputs_of(sizes)
    attention.recompute = recompute
    norm = RMSNorm(WIDTH).double()
    with torch.no_grad():
        norm.gain.copy_(torch.linspace(0.5, 2, WIDTH))

    def normalised(attention: DepthAttention, tensors: list[Tensor], fused: bool) -> list[Tensor]:
        state, reads = attention.start(tensors[0]), []
        for site in range(len(tensors)):
            if fused:
                reads.append(attention.read_normalised(state, site, norm.gain))
            else:
                reads.append(norm(attention.read(state, site)))
            if site < len(tensors) - 1:
                state = attention.write(state, site, tensors[site + 1] + reads[-1].tanh())
        return reads

    results = []
    for fused in (True, False):
        reads = normalised(attention, tensors, fused)
        loss = sum(read.sin().sum() for read in reads)
        leaves = [*tensors, *attention.parameters(), norm.gain]
        results.append([*reads, *torch.autograd.grad(loss, leaves)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{"block_size": 1}, {"num_blocks": 2}])
def test_r12_recomputing_reads_changes_no_gradient(options: dict) -> None:
    model = make(StreamSpec(name="block_attnres", options=options))
    tokens = batch(small_shape())
    loss, gradients = loss_and_gradients(model, tokens)
    model.stream.depth_attention.recompute = True
    again, again_gradients = loss_and_gradients(model, tokens)
    assert torch.equal(loss, again)
    for name, gradient in gradients.items():
        torch.testing.assert_close(again_gradients[name], gradient, rtol=1e-6, atol=1e-7)


def test_r20_bf16_sources_of_norm_1_to_1e3_stay_within_2_percent() -> None:
    sizes = (1, 2, 1, 2)
    attention = attention_of(sizes, torch.float32)
    with torch.no_grad():
        attention.pseudo_queries.mul_(0.3)
    norms = torch.logspace(0, 3, len(inputs_of(sizes)))
    exact = [
        (t.detach() / t.detach().norm(dim=-1, keepdim=True) * norm).float()
        for t, norm in zip(inputs_of(sizes), norms, strict=True)
    ]

    def reads(dtype: torch.dtype) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            state, found = attention.start(exact[0]), []
            for site, output in enumerate(exact[1:]):
                found.append(attention.read(state, site))
                state = attention.write(state, site, output.to(dtype))
            return [*found, attention.read(state, len(exact) - 1)]

    for low, full in zip(reads(torch.bfloat16), reads(torch.float32), strict=True):
        assert low.dtype == torch.float32
        assert (low - full).norm() / full.norm() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_r20_a_zero_source_gives_no_nan_and_weights_sum_to_one(dtype: torch.dtype) -> None:
    attention = attention_of((1, 1, 1), torch.float32)
    ones = torch.ones(1, 2, WIDTH, dtype=dtype)
    with torch.no_grad():
        state = attention.start(ones.float())
        state = attention.write(state, 0, ones)
        assert (attention.read(state, 1) - 1).abs().max() < 1e-3  # a weighted mean of ones
    tensors = [torch.zeros(1, 2, WIDTH, dtype=dtype, requires_grad=True) for _ in range(4)]
    state = attention.start(tensors[0].float())
    for site, output in enumerate(tensors[1:]):
        state = attention.write(state, site, output)
    attention.read(state, 3).sum().backward()
    for tensor in tensors:
        assert torch.isfinite(tensor.grad).all()


def test_logits_far_apart_do_not_overflow() -> None:
    attention = attention_of((1, 1), torch.float32)
    with torch.no_grad():
        attention.pseudo_queries.fill_(200.0)
        attention.key_gains.fill_(1.0)
    plus = torch.ones(1, 1, WIDTH, requires_grad=True)
    state = attention.start(-plus)
    state = attention.write(state, 0, plus)
    h = attention.read(state, 1)
    assert torch.equal(h, plus)
    h.sum().backward()
    assert torch.isfinite(plus.grad).all()
