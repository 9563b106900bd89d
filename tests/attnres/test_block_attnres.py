"""Sources, partitions and options of Full and Block AttnRes (method, section 2; cases R04, R06, R07, R17, R18)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from attnres.block_partition import block_map, partition
from attnres.depth_attention import DepthAttention
from attnres.initialise import build
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from attnres.streams.block_attnres import BlockAttnRes
from tests.laws.subjects import make, small_shape


def depth_attention(num_sublayers: int, sizes: tuple[int, ...]) -> DepthAttention:
    return DepthAttention(width=4, num_sublayers=num_sublayers, sizes=sizes)


@pytest.mark.parametrize("num_sublayers", range(1, 10))
def test_r04_law_5_sources_follow_the_written_rule(num_sublayers: int) -> None:
    for size in range(1, num_sublayers + 1):
        attention = depth_attention(num_sublayers, partition(num_sublayers, block_size=size))
        for site in range(num_sublayers + 1):
            finished, running = divmod(site, size)
            expected = ["embedding"]
            expected += ["+".join(f"f{n * size + k}" for k in range(size)) for n in range(finished)]
            if running:
                expected.append("+".join(f"f{k}" for k in range(finished * size, site)))
            assert attention.sources(site) == tuple(expected)
        output = len(attention.sources(num_sublayers))
        assert output == (num_sublayers - 1) // size + 2


def test_r18_full_has_one_source_a_sublayer_and_the_embedding() -> None:
    stream = make(StreamSpec(name="full_attnres"), small_shape(depth=4)).stream
    for layer in range(1, 5):
        assert len(stream.sources(2 * (layer - 1))) == 2 * (layer - 1) + 1
    assert len(stream.sources(8)) == 9


@given(st.integers(1, 60), st.integers(1, 20))
def test_r07_one_rule_serves_every_size(num_sublayers: int, count: int) -> None:
    blocks = partition(num_sublayers, num_blocks=count)
    assert sum(blocks) == num_sublayers
    assert len(blocks) == min(count, num_sublayers)
    assert max(blocks) - min(blocks) <= 1
    assert list(blocks) == sorted(blocks, reverse=True)
    sizes = partition(num_sublayers, block_size=count)
    assert sum(sizes) == num_sublayers
    assert set(sizes[:-1]) <= {count}
    assert 1 <= sizes[-1] <= count


def test_r07_partitions_as_the_method_gives_them() -> None:
    assert partition(7, num_blocks=3) == (3, 2, 2)
    assert partition(7, block_size=3) == (3, 3, 1)
    assert partition(6, boundaries=(1, 4)) == (1, 3, 2)
    assert partition(4, num_blocks=8) == (1, 1, 1, 1)


def test_r06_the_block_map_is_printed_and_units_are_named() -> None:
    assert block_map(partition(7, num_blocks=3)) == "[0 1 2][3 4][5 6]"
    by_count = make(StreamSpec(name="block_attnres", options={"num_blocks": 3})).stream
    by_size = make(StreamSpec(name="block_attnres", options={"block_size": 3})).stream
    assert isinstance(by_count, BlockAttnRes)
    assert isinstance(by_size, BlockAttnRes)
    assert (by_count.block_map(), by_size.block_map()) == ("[0 1][2 3][4 5]", "[0 1 2][3 4 5]")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of num_blocks, block_size"),
        ({"num_blocks": 2, "block_size": 3}, "given: num_blocks, block_size"),
        ({"blocks": 2}, "unknown option blocks; it knows num_blocks"),
        ({"num_blocks": 0}, "greater than or equal to 1"),
    ],
)
def test_unknown_or_contradictory_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StreamSpec(name="block_attnres", options=options)


@pytest.mark.parametrize("boundaries", [(0, 2), (3, 3), (4, 2), (6,), (9,)])
def test_impossible_boundaries_are_refused_naming_them(boundaries: tuple[int, ...]) -> None:
    spec = StreamSpec(name="block_attnres", options={"boundaries": boundaries})
    with pytest.raises(ValueError, match="boundaries .* must increase strictly inside 1..5"):
        spec.build(small_shape(depth=3))


def test_full_is_block_of_one() -> None:
    shape = small_shape()
    full = make(StreamSpec(name="full_attnres"), shape)
    tokens = torch.arange(12).view(1, 12)
    for options in ({"block_size": 1}, {"num_blocks": 6}, {"num_blocks": 99}):
        block = make(StreamSpec(name="block_attnres", options=options), shape)
        assert torch.equal(block(tokens), full(tokens))


def test_r17_parameters_are_one_query_and_one_key_norm_a_read() -> None:
    shape = ModelShape(depth=3, width=32, num_heads=2, mlp_width=48, vocab_size=64, seq_len=12)
    for spec in (
        StreamSpec(name="full_attnres"),
        StreamSpec(name="block_attnres", options={"num_blocks": 2}),
    ):
        stream = build(shape, spec, seed=0).stream
        sizes = {name.rpartition(".")[2]: tuple(p.shape) for name, p in stream.named_parameters()}
        assert sizes == {"pseudo_queries": (7, 32), "key_gains": (7, 32)}


def test_r17_options_show_in_the_label() -> None:
    assert StreamSpec(name="full_attnres").variant == "full_attnres"
    spec = StreamSpec(name="block_attnres", options={"block_size": 3})
    assert spec.variant == "block_attnres[block_size=3]"
