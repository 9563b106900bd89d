"""What backward keeps (case R12), counted with saved-tensor hooks: exact, so a test and not a timing."""

import pytest

from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from benchmarks.memory import model_of, saved_bytes

SEQUENCES = 2
BASELINE = StreamSpec(name="additive")
BLOCK = StreamSpec(name="block_attnres", options={"num_blocks": 4})
FULL = StreamSpec(name="full_attnres")


def shape(depth: int) -> ModelShape:
    return ModelShape(depth=depth, width=128, num_heads=4, mlp_width=344, vocab_size=64, seq_len=32)


def kept(depth: int, spec: StreamSpec, *, recompute: bool = False) -> int:
    return saved_bytes(model_of(shape(depth), spec, recompute=recompute), SEQUENCES)


@pytest.mark.parametrize("recompute", [False, True])
def test_r12_block_grows_linearly_with_depth(recompute: bool) -> None:
    first, second, third = (kept(depth, BLOCK, recompute=recompute) for depth in (4, 8, 16))
    assert third - second == pytest.approx(2 * (second - first), rel=0.01)


@pytest.mark.parametrize("spec", [BLOCK, FULL])
def test_r12_recomputing_keeps_less_than_one_tensor_beyond_the_baseline(spec: StreamSpec) -> None:
    tensor = SEQUENCES * 32 * 128 * 4
    for depth in (4, 12):
        beyond = kept(depth, spec, recompute=True) - kept(depth, BASELINE)
        assert beyond < tensor, f"depth {depth}: {beyond / tensor:.2f} tensors of (B, T, D)"


@pytest.mark.parametrize("spec", [BLOCK, FULL])
def test_r12_keeping_stays_within_115_percent_of_the_step(spec: StreamSpec) -> None:
    assert kept(12, spec) / kept(12, BASELINE) <= 1.15
