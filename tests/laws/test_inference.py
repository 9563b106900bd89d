"""Law 7: prefill and cached decoding give what the full forward pass gives, for every stream."""

import pytest
import torch

from attnres.errors import UserError
from attnres.inference import Generator, generate
from attnres.stream_spec import StreamSpec
from tests.laws.subjects import EVERY_STREAM, batch, make, small_shape


@EVERY_STREAM
@pytest.mark.parametrize("pieces", [(1,) * 12, (12,), (5, 1, 1, 5), (4, 4, 4)], ids=str)
def test_law_7_prefill_and_cached_decode_equal_the_full_forward(
    stream_spec: StreamSpec, pieces: tuple[int, ...]
) -> None:
    model = make(stream_spec)
    tokens = batch(model.shape, sequences=3)[:, :-1]
    expected = model(tokens).detach()
    generator, start = Generator(model, batch=3), 0
    for count in pieces:
        logits = generator.extend(tokens[:, start : start + count])
        start += count
        torch.testing.assert_close(logits, expected[:, start - 1], rtol=1e-5, atol=1e-5)


@EVERY_STREAM
def test_law_7_greedy_text_is_that_of_the_full_forward(stream_spec: StreamSpec) -> None:
    model = make(stream_spec)
    text = batch(model.shape)[:, :4]
    drawn = generate(model, text, 6, temperature=0)
    for _ in range(6):
        text = torch.cat([text, model(text)[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(drawn, text[:, 4:])


def test_drawn_text_follows_its_generator() -> None:
    model = make(StreamSpec(name="additive"))
    text = batch(model.shape)[:, :2]
    draws = [generate(model, text, 8, random=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_text_that_does_not_fit_is_refused() -> None:
    generator = Generator(make(StreamSpec(name="additive"), small_shape()))
    generator.extend(torch.zeros(1, 10, dtype=torch.long))
    with pytest.raises(UserError, match="3 tokens after 10 do not fit seq_len 12"):
        generator.extend(torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(UserError, match="2 sequences for a cache of 1"):
        generator.extend(torch.zeros(2, 1, dtype=torch.long))
