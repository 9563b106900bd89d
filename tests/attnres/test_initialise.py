"""Initial parameters by name, and the decoder's plain properties."""

import math

import pytest
import torch
from pydantic import ValidationError

from attnres.initialise import build
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from tests.laws.subjects import batch, small_shape

ADDITIVE = StreamSpec(name="additive")


def test_one_seed_gives_one_model_and_another_gives_another() -> None:
    one, same, other = (build(small_shape(), ADDITIVE, seed) for seed in (0, 0, 1))
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, same.get_parameter(name))
        if not name.endswith("gain"):
            assert not torch.equal(parameter, other.get_parameter(name)), name


def test_the_global_generator_neither_matters_nor_moves() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build(small_shape(), ADDITIVE, 0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two = build(small_shape(), ADDITIVE, 0)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, two.get_parameter(name))


def test_no_two_parameters_are_copies_and_layers_are_independent_of_depth() -> None:
    shallow, deep = build(small_shape(2), ADDITIVE, 0), build(small_shape(4), ADDITIVE, 0)
    matrices = [parameter for name, parameter in deep.named_parameters() if not name.endswith("gain")]
    first = [parameter.flatten()[0].item() for parameter in matrices]
    assert len(set(first)) == len(first)
    name = "sublayers.0.qkv.weight"
    assert torch.equal(shallow.get_parameter(name), deep.get_parameter(name))


def test_scales_are_those_of_the_table() -> None:
    shape = ModelShape(depth=8, width=256, num_heads=4, mlp_width=512, vocab_size=512, seq_len=8)
    model = build(shape, ADDITIVE, 0)
    expected = {
        "embedding": 1.0,
        "sublayers.0.qkv.weight": 1 / 16,
        "sublayers.0.out.weight": 1 / 16 / 4,
        "sublayers.3.gate_up.weight": 1 / 16,
        "sublayers.3.out.weight": 512**-0.5 / 4,
        "head.weight": 1 / 256,
    }
    for name, std in expected.items():
        assert model.get_parameter(name).std().item() == pytest.approx(std, rel=0.02), name


def test_the_first_loss_is_that_of_a_uniform_guess() -> None:
    shape = ModelShape(depth=2, width=128, num_heads=4, mlp_width=256, vocab_size=256, seq_len=64)
    tokens = batch(shape, sequences=4)
    for spec in (ADDITIVE, StreamSpec(name="full_attnres")):
        loss = build(shape, spec, 0).loss(tokens[:, :-1], tokens[:, 1:])
        assert loss.item() == pytest.approx(math.log(256), abs=0.03)


def test_a_tied_head_is_the_embedding() -> None:
    model = build(small_shape(tied=True), ADDITIVE, 0)
    assert model.head is None
    tokens = batch(model.shape)[:, :-1]
    h = model.norm(torch.randn(1, 1, 32))
    assert (h @ model.embedding.T).std() < 3
    assert model(tokens).shape == (2, 12, 64)


def test_token_losses_average_to_the_loss() -> None:
    model = build(small_shape(), ADDITIVE, 0)
    tokens = batch(model.shape)
    losses = model.token_losses(tokens[:, :-1], tokens[:, 1:])
    assert losses.shape == (2, 12)
    torch.testing.assert_close(losses.mean(), model.loss(tokens[:, :-1], tokens[:, 1:]))


def test_unknown_streams_are_refused_naming_the_known() -> None:
    with pytest.raises(ValidationError, match="unknown stream 'atnres': known are additive, block_attnres"):
        StreamSpec(name="atnres")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "width 32 is not a multiple of num_heads 3"),
        ({"num_heads": 32}, "head width"),
        ({"depth": 0}, "greater than or equal to 1"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        small_shape(**{"depth": 1, **changes})
