"""Short ways from a made-up study to its pairs and answers."""

from pathlib import Path
from typing import Any

import numpy as np

from analysis.comparison import HEADLINE, MATCHED, Answer, Comparison, Question
from analysis.multipliers.base import PairedArms
from analysis.study import Study
from tests.analysis.planted import planted_study

BASELINE, VARIANT = "additive", "full_attnres"


def made_study(folder: Path, **options: Any) -> Study:
    """A study of two arms, without curves."""
    return Study(planted_study(folder, **({"arms": (BASELINE, VARIANT), "curves": False} | options)))


def ask(
    study: Study,
    *,
    variant: str = VARIANT,
    estimator: str = HEADLINE,
    axis: str = "exact",
    rate: str = MATCHED,
    allow: tuple[str, ...] = (),
) -> Answer:
    """The answer to one question."""
    return Comparison(study, allow).answer(Question(variant, estimator, axis, rate))


def arms_of(
    x_b: np.ndarray, x_v: np.ndarray, loss_b: np.ndarray, loss_v: np.ndarray, seeds: Any = 1
) -> PairedArms:
    """Paired arms from arrays over rungs; every rung is a size of its own."""
    k = len(x_b)
    counts = np.broadcast_to(np.asarray(seeds, float), (k,)).copy()
    compute_b, compute_v = np.exp(x_b) * 1e13, np.exp(x_v) * 1e13
    return PairedArms(
        variant=VARIANT,
        baseline=BASELINE,
        compute_axis="exact",
        sizes=tuple(f"s{i}" for i in range(k)),
        budget=compute_b,
        params_baseline=np.sqrt(compute_b),
        params_variant=np.sqrt(compute_b),
        tokens=np.sqrt(compute_b),
        compute_baseline=compute_b,
        compute_variant=compute_v,
        loss_baseline=np.asarray(loss_b, float),
        loss_variant=np.asarray(loss_v, float),
        num_seeds=counts,
        pair_rung=np.arange(k),
        pair_seed=np.zeros(k, dtype=int),
        pair_loss_baseline=np.asarray(loss_b, float),
        pair_loss_variant=np.asarray(loss_v, float),
        pair_spec_ids=tuple((f"b{i}", f"v{i}") for i in range(k)),
    )
