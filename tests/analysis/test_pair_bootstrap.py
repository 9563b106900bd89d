"""The two-level bootstrap: seeded, pairs stay pairs, as narrow as it is known to be."""

import math

import numpy as np
import pytest

from analysis.multipliers.base import RefusalError
from analysis.pair_bootstrap import bootstrap_pairs
from analysis.simulation import Design, simulate
from tests.analysis.studies import arms_of, ask, made_study


def test_it_is_seeded_and_near_the_headline(tmp_path):
    found = ask(made_study(tmp_path, seeds=3))
    first, again = bootstrap_pairs(found.arms), bootstrap_pairs(found.arms)
    assert first == again
    assert first != bootstrap_pairs(found.arms, seed=1)
    assert first.lo < found.estimate.ln_m < first.hi
    assert first.failed < 0.05 * first.draws


def test_pairs_stay_pairs(tmp_path):
    """A shift that both arms of a pair share moves no draw."""
    arms = ask(made_study(tmp_path, seeds=4, lack_of_fit=0.0, noise=1e-3, correlation=0.99)).arms
    loose = ask(made_study(tmp_path / "loose", seeds=4, lack_of_fit=0.0, noise=1e-3, correlation=0.0)).arms
    tight, wide = bootstrap_pairs(arms), bootstrap_pairs(loose)
    assert tight.hi - tight.lo < 0.5 * (wide.hi - wide.lo)


def test_percentiles_over_five_sizes_cover_too_little():
    """86 % where the headline covers 95 %: the reason why it gives no verdict."""
    made = simulate(Design(5, 1, 0.002, compute_range=6), 1.25, 200, seed=2)
    covered = []
    for i in range(200):
        found = bootstrap_pairs(arms_of(*(part[i] for part in made.inputs[:4])), draws=400)
        covered.append(found.lo <= math.log(1.25) <= found.hi)
    assert 0.78 <= np.mean(covered) <= 0.92


def test_refused_headlines_are_refused_here(tmp_path):
    with pytest.raises(RefusalError, match="too few sizes"):
        bootstrap_pairs(ask(made_study(tmp_path, sizes=3)).arms)
