"""What the decoder refuses."""

import pytest
import torch

from tests.laws.subjects import batch, make, small_shape, subjects


def test_more_positions_than_the_model_has_are_refused() -> None:
    model = make(subjects(small_shape())[0])
    tokens = batch(small_shape())
    assert tokens.shape[1] == model.shape.seq_len + 1
    with pytest.raises(ValueError, match="the model has"), torch.no_grad():
        model(tokens)
    assert model(tokens[:, :-1]).isfinite().all()
