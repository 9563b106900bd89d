from itertools import pairwise

import pytest

from experiments.callbacks import evaluation_steps
from experiments.optim import learning_rate
from experiments.recipes.base import RECIPES


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_s07_the_schedule_ends_where_the_run_ends(spec_of, schedule):
    spec = spec_of(schedule=schedule)
    rates = [learning_rate(spec, step) for step in range(1, spec.steps + 1)]
    assert rates[-1] == pytest.approx(spec.train.lr * spec.train.lr_floor, rel=1e-12)
    assert max(rates) == rates[spec.train.warmup - 1] == spec.train.lr
    assert all(later < earlier for earlier, later in pairwise(rates[2:]))


def test_warm_up_is_linear_and_its_first_step_is_not_lost(spec_of):
    spec = spec_of(warmup=4)
    assert [learning_rate(spec, step) / spec.train.lr for step in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]


def test_cosine_is_half_way_down_at_its_middle(spec_of):
    spec = spec_of(warmup=4, tokens=24 * 512)
    middle = learning_rate(spec, 14) / spec.train.lr
    assert middle == pytest.approx(0.1 + 0.9 * 0.5, rel=1e-12)


def test_l17_evaluations_follow_the_step_alone_and_end_with_the_run():
    assert evaluation_steps(40, 4) == {10, 20, 30, 40}
    assert max(evaluation_steps(37, 4)) == 37
    assert evaluation_steps(2, 4) == {1, 2}


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("tokens", [3e4, 1e6, 7e6])
def test_recipes_give_whole_batches_near_the_wish(name, tokens):
    train, exact = RECIPES.get(name).train(params=1e5, tokens=tokens)
    assert exact % train.batch_tokens == 0
    assert abs(exact - tokens) <= max(train.batch_tokens, 0)
    assert train.warmup < exact // train.batch_tokens
    assert train.warmup / (exact // train.batch_tokens) == pytest.approx(0.1, abs=0.05)


def test_a_recipe_s_rate_is_its_power_law_and_can_be_overridden():
    recipe = RECIPES.get("bytes_ladder")
    ratio = recipe.lr(1e6) / recipe.lr(1e5)
    assert ratio == pytest.approx(10**recipe.lr_exponent, rel=0.01)
    assert recipe.train(params=1e5, tokens=1e6, lr=0.123)[0].lr == 0.123
