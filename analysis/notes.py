"""What a reader must know beside a multiplier: differences allowed, cells lost, noise near the effect."""

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.comparison import HEADLINE, MATCHED, Answer
from analysis.compute_axes import EXACT
from analysis.multipliers.base import PairedArms
from analysis.noise import measure_noise
from analysis.rates import BestRate, best_rates, rates_without_common_seed
from analysis.study import Study


def write_notes(study: Study, answers: Sequence[Answer]) -> None:
    """Write fits/notes.json: [{variant, note}] on the headline comparison of every arm."""
    rates, apart = best_rates(study.cells), rates_without_common_seed(study.cells)
    noise = measure_noise(study.cells, study.plan.baseline)["pooled"]["sd"]
    rows = []
    for answer in answers:
        question = answer.question
        if (question.estimator, question.compute_axis, question.rate) != (HEADLINE, EXACT, MATCHED):
            continue
        if answer.arms is None or question.variant not in study.plan.arms:
            continue
        found = [
            *answer.arms.notes,
            *_noise_notes(study.cells, answer.arms, noise),
            *_rate_notes(answer.arms, rates),
            *(no.words() for no in apart if no.variant == question.variant),
        ]
        rows += [{"variant": question.variant, "note": note} for note in found]
    study.write_fits("notes", rows)


def _noise_notes(cells: pd.DataFrame, arms: PairedArms, seed_sd: float | None) -> Iterator[str]:
    if arms.same_losses:
        return
    effect = abs(float((arms.loss_baseline - arms.loss_variant).mean()))
    used = cells[cells["spec_id"].isin(arms.spec_ids)]
    largest = float(used["val_loss_se"].max()) if used["val_loss_se"].notna().any() else None
    if largest is not None and largest > effect / 3:
        yield (
            f"a validation loss has a standard error of up to {largest:.2g} nats, more than a third of "
            f"the mean difference of {effect:.2g}; the arms see the same tokens, so their difference "
            "is better known than either"
        )
    if seed_sd is None:
        yield "no size was trained at two seeds in each arm: the seed sd is unknown"
    elif effect < 2 * seed_sd:
        yield f"noise: the mean difference of {effect:.2g} nats is under 2 seed sd ({seed_sd:.2g} nats)"


def _rate_notes(arms: PairedArms, rates: Sequence[BestRate]) -> Iterator[str]:
    """Sizes at which the arms' best rates are more than one grid step apart, or at the edge of the grid."""
    best = {(rate.variant, rate.size): rate for rate in rates}
    for size in dict.fromkeys(arms.sizes):
        left, right = best.get((arms.baseline, size)), best.get((arms.variant, size))
        if left is None or right is None or arms.variant == arms.baseline:
            continue
        for rate in (left, right):
            if rate.at_edge:
                yield f"{rate.variant} at {size}: the best rate {rate.best:g} is the edge of those tried"
        grid = sorted({*left.rates, *right.rates})
        steps = abs(grid.index(left.best) - grid.index(right.best))
        if steps > 1:
            factor = math.exp(abs(math.log(right.best / left.best)))
            yield (
                f"{size}: {arms.variant}'s best rate {right.best:g} is {steps} steps ({factor:.2g}x) from "
                f"{arms.baseline}'s {left.best:g}; the matched comparison is at the baseline's"
            )
