"""The optional fused read: taken only where it gives what the definition gives, and then the same model."""

import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from attnres import depth_attention, fused_reads
from attnres.fused_reads import TOLERANCE, find_read, largest_gap
from attnres.mixing import reference_mix
from attnres.probes import Probe
from attnres.stream_spec import StreamSpec
from tests.laws.subjects import batch, loss_and_gradients, make, small_shape

CPU = torch.device("cpu")
STREAMS = [
    StreamSpec(name="full_attnres"),
    StreamSpec(name="block_attnres", options={"num_blocks": 2}),
    StreamSpec(name="block_attnres", options={"block_size": 3}),
]


def without_gain(sources, query_D: Tensor, gain_D: Tensor) -> Tensor:
    return reference_mix(sources, query_D, torch.ones_like(gain_D) + 0 * gain_D)


def scaled(sources, query_D: Tensor, gain_D: Tensor) -> Tensor:
    return reference_mix(sources, query_D * 1.01, gain_D)


def detached(sources, query_D: Tensor, gain_D: Tensor) -> Tensor:
    exact = reference_mix(sources, query_D, gain_D)
    keys_only = reference_mix([source.detach() for source in sources], query_D, gain_D)
    return keys_only + (exact - exact.detach()) * 0.999


def not_a_number(sources, query_D: Tensor, gain_D: Tensor) -> Tensor:
    return reference_mix(sources, query_D, gain_D) * float("nan")


@pytest.mark.parametrize("width", [16, 100])
def test_the_definition_itself_is_within_the_tolerance(width: int) -> None:
    assert largest_gap(reference_mix, CPU, width) < TOLERANCE
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):  # whoever asks first
        assert largest_gap(reference_mix, CPU, width) < TOLERANCE


@pytest.mark.parametrize("wrong", [without_gain, scaled, detached, not_a_number])
def test_an_operator_that_deviates_is_found_out(wrong) -> None:
    assert largest_gap(wrong, CPU, 16) > TOLERANCE


@pytest.fixture
def installed(monkeypatch):
    """An operator in the package's place; the device is a CPU that passes for a GPU."""

    def install(read) -> None:
        operator = lambda query, residuals, rms_weight, **_: read(residuals, query, rms_weight)  # noqa: E731
        monkeypatch.setitem(sys.modules, fused_reads.MODULE, SimpleNamespace(fused_attnres=operator))
        monkeypatch.setattr(fused_reads, "version", lambda _: "9.9")
        fused_reads._found.cache_clear()

    yield install
    fused_reads._found.cache_clear()


def test_only_a_right_operator_is_taken_and_a_wrong_one_told(installed, caplog) -> None:
    installed(reference_mix)
    assert fused_reads._found("cpu", 16) is not None
    installed(scaled)
    with caplog.at_level(logging.WARNING):
        assert fused_reads._found("cpu", 16) is None
    assert "off by" in caplog.text and "not used" in caplog.text


def test_without_cuda_or_the_package_nothing_changes() -> None:
    assert find_read(CPU, 16) is None and fused_reads.name(CPU, 16) is None
    assert fused_reads._found("cpu", 16) is None  # not installed here


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("stream_spec", STREAMS)
def test_a_model_with_fused_reads_is_the_same_model(stream_spec, autocast, monkeypatch) -> None:
    model, tokens = make(stream_spec).float(), batch(small_shape())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss, gradients = loss_and_gradients(model, tokens)
        monkeypatch.setattr(depth_attention, "find_read", lambda *_: reference_mix)
        fused_loss, fused_gradients = loss_and_gradients(model, tokens)
        with torch.no_grad():
            logits = model(tokens[:, :-1])
    tolerance = 0.03 if autocast else 1e-5
    torch.testing.assert_close(fused_loss, loss, rtol=tolerance, atol=tolerance)
    assert logits.isfinite().all()
    for name, gradient in gradients.items():
        scale = gradient.abs().max().clamp_min(1e-3)
        gap = (fused_gradients[name] - gradient).abs().max() / scale
        assert gap < (0.2 if autocast else 1e-4), f"{name}: {gap:.2g}"


def test_probes_see_the_mixture_of_fused_reads(monkeypatch) -> None:
    model, tokens = make(STREAMS[1]).float(), batch(small_shape())

    def readings() -> dict:
        with Probe(model) as probe:
            model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        return {(r.site, r.quantity, r.source): r.value for r in probe.readings()}

    plain = readings()
    monkeypatch.setattr(depth_attention, "find_read", lambda *_: reference_mix)
    model.zero_grad(set_to_none=True)
    assert readings() == pytest.approx(plain, rel=1e-4, abs=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_package_s_operator_on_a_gpu() -> None:
    pytest.importorskip(fused_reads.MODULE)
    for width in (64, 100, 1024):
        assert find_read(torch.device("cuda"), width) is not None
