from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.optim import learning_rate
from experiments.recipes.base import RECIPES
from experiments.validation import evaluation_steps
from tests.experiments.conftest import make_spec


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


@given(st.floats(0, 1), st.integers(1, 20), st.integers(1, 10), st.floats(1e-5, 1))
def test_wsd_gives_the_trunk_s_rates_exactly_until_its_cooldown_and_then_falls_to_the_floor(
    floor, cooldown, warmup, lr
):
    """To the last bit for every floor: floor + (1 - floor) is 1 in doubles."""
    branch = make_spec(
        schedule="wsd", cooldown=cooldown, warmup=warmup, lr=lr, lr_floor=floor, tokens=30 * 512
    )
    trunk = make_spec(schedule="constant", warmup=warmup, lr=lr, lr_floor=1.0, tokens=29 * 512)
    stable = 30 - cooldown
    assert [learning_rate(branch, s) for s in range(1, stable + 1)] == [
        learning_rate(trunk, s) for s in range(1, stable + 1)
    ]
    rates = [learning_rate(branch, s) for s in range(stable, 31)]
    assert rates[0] == lr and rates[-1] == lr * floor
    steps = [before - after for before, after in pairwise(rates)]
    assert steps == pytest.approx([lr * (1 - floor) / cooldown] * cooldown, rel=1e-9, abs=1e-12 * lr)


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("tokens", [5e5, 1e6, 7e6])
def test_recipes_give_whole_batches_near_the_wish(name, tokens):
    train, exact = RECIPES.get(name).train(params=1e5, tokens=tokens)
    assert exact % train.batch_tokens == 0
    assert abs(exact - tokens) <= max(train.batch_tokens, 0)
    steps = exact // train.batch_tokens
    assert train.warmup < steps
    if train.schedule == "wsd":
        assert train.cooldown / steps == pytest.approx(0.1, abs=0.002)
        assert train.warmup * train.batch_tokens == pytest.approx(0.5 * 1e5, rel=0.02)
    else:
        assert train.warmup / steps == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize("name", ["bytes_trunks", "smoke_trunks"])
def test_a_branched_recipe_s_numbers_before_the_cooldown_depend_on_the_parameters_alone(name):
    recipe = RECIPES.get(name)
    found = [recipe.train(params=2e5, tokens=tokens)[0] for tokens in (1e6, 4e6, 16e6)]
    same = {
        (train.lr, train.batch_tokens, train.warmup, train.weight_decay, train.grad_clip) for train in found
    }
    assert len(same) == 1
    assert len({train.cooldown for train in found}) == 3


def test_the_trunks_recipe_is_the_demo_s_at_the_demo_s_tokens_a_parameter():
    demo, trunks = RECIPES.get("bytes_ladder"), RECIPES.get("bytes_trunks")
    for params in (4e4, 1e5, 3e5):
        left, right = (recipe.train(params=params, tokens=20 * params)[0] for recipe in (demo, trunks))
        assert (left.lr, left.weight_decay, left.lr_floor) == (right.lr, right.weight_decay, right.lr_floor)
        assert max(left.batch_tokens, right.batch_tokens) <= 2 * min(left.batch_tokens, right.batch_tokens)


def test_a_recipe_s_rate_is_its_power_law_and_can_be_overridden():
    recipe = RECIPES.get("bytes_ladder")
    ratio = recipe.lr(1e6) / recipe.lr(1e5)
    assert ratio == pytest.approx(10**recipe.lr_exponent, rel=0.01)
    assert recipe.train(params=1e5, tokens=1e6, lr=0.123)[0].lr == 0.123
