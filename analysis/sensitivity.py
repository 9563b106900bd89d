"""How the headline moves when something else is assumed, left out, corrupted or rounded."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from analysis.arm_points import points_of
from analysis.comparison import HEADLINE, MATCHED, Comparison, Question
from analysis.compute_axes import COMPUTE_AXES, EXACT, WALL
from analysis.error_budget import error_budget
from analysis.exclusions import EXCLUSIONS_FILE, put_back
from analysis.fits import fit_arm
from analysis.forms.base import form_named
from analysis.model_comparison import compare_models
from analysis.multipliers.base import LEVEL, MAX_LN, PairedArms, RefusalError
from analysis.multipliers.pair_arrays import estimate_pair_slope
from analysis.multipliers.pair_slope import inputs_of, pair_slope, pair_slope_at
from analysis.pairing import match_pairs
from analysis.plan_file import LADDER_ROLES
from analysis.rates import best_rates
from analysis.study import Study
from analysis.variations import refused, row_of, variations

IRREDUCIBLE_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Fixed values of E tried, as shares of the lowest loss of the pair."""


def write_sensitivity(comparison: Comparison) -> None:
    """Write fits/pairs, sensitivity, comparison and error_budget of every arm."""
    study = comparison.study
    pairs: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    budget: list[dict[str, Any]] = []
    rates = [rate.as_dict() for rate in best_rates(study.cells)]
    for variant in study.plan.arms:
        if variant == study.plan.baseline:
            continue
        try:
            arms = comparison.arms(Question(variant, HEADLINE, EXACT, MATCHED))
        except RefusalError as refusal:
            rows.append(refused(variant, "headline", "", refusal))
            models.append({"variant": variant, "model": None, "status": f"refused: {refusal}"})
            continue
        pairs += _pairs(arms)
        found = [*_irreducible(study, arms), *variations(arms), *_put_back(comparison, variant)]
        rows += found
        models += compare_models(arms)
        budget += error_budget(arms, found, _by_axis(comparison, variant), rates)
    study.write_fits("pairs", pairs)
    study.write_fits("sensitivity", rows)
    study.write_fits("comparison", models)
    study.write_fits("error_budget", budget)


def _pairs(arms: PairedArms) -> Iterator[dict[str, Any]]:
    values: list[float | None] = [None] * len(arms.sizes)
    if arms.num_sizes >= 3:
        rungs = estimate_pair_slope(*inputs_of(arms)).rung_ln_m[0]
        values = [float(np.exp(v)) if np.isfinite(v) and abs(v) < 700 else None for v in rungs]
    for i, size in enumerate(arms.sizes):
        yield {
            "variant": arms.variant,
            "size": size,
            "budget": float(arms.budget[i]),
            "compute": float(arms.compute_baseline[i]),
            "compute_variant": float(arms.compute_variant[i]),
            "n_seeds": int(arms.num_seeds[i]),
            "loss_baseline": float(arms.loss_baseline[i]),
            "loss_variant": float(arms.loss_variant[i]),
            "difference": float(arms.loss_baseline[i] - arms.loss_variant[i]),
            "compute_multiplier": values[i],
            "spec_ids": [
                spec_id
                for rung, pair in zip(arms.pair_rung, arms.pair_spec_ids, strict=True)
                if rung == i
                for spec_id in pair
            ],
        }


def _irreducible(study: Study, arms: PairedArms) -> Iterator[dict[str, Any]]:
    """E free in each arm, shared (profiled), and fixed over a grid; a note where they disagree."""
    shared = row_of(arms, "irreducible", "shared", partial(pair_slope, arms, LEVEL))
    lowest = float(min(arms.loss_baseline.min(), arms.loss_variant.min()))
    fixed = [
        row_of(arms, "irreducible", f"fixed: {value:.4g}", partial(pair_slope_at, arms, LEVEL, value))
        for value in (share * lowest for share in IRREDUCIBLE_SHARES)
    ]
    free = _free(study, arms)
    yield from (free, shared, *fixed)
    answered = [row for row in (free, shared, fixed[0]) if row["compute_multiplier"] is not None]
    intervals = [row for row in answered if row["lo"] is not None]
    apart = intervals and max(row["lo"] for row in intervals) > min(row["hi"] for row in intervals)
    outside = [
        row["value"]
        for row in answered
        if shared["lo"] is not None and not shared["lo"] <= row["compute_multiplier"] <= shared["hi"]
    ]
    if apart or outside:
        yield {
            "variant": arms.variant,
            "kind": "irreducible",
            "value": "disagreement",
            "compute_multiplier": None,
            "lo": None,
            "hi": None,
            "status": "the rules for E disagree beyond the headline's interval: "
            + ", ".join(f"{row['value']} {row['compute_multiplier']:.3f}" for row in answered),
        }


def _free(study: Study, arms: PairedArms) -> dict[str, Any]:
    """m at the geometric middle of the budgets from one saturating law an arm, each with its own E."""
    row = {
        "variant": arms.variant,
        "kind": "irreducible",
        "value": "free in each arm",
        "compute_multiplier": None,
    }
    row |= {"lo": None, "hi": None}
    form = form_named("saturating")
    base, other = (fit_arm(form, points_of(study.cells, name)) for name in (arms.baseline, arms.variant))
    for result in (base, other):
        if not result.usable:
            return row | {"status": f"refused: {result.group}: {result.message}"}
    middle = math.exp(float(np.log(arms.compute_variant).mean()))
    loss = float(form.predict(other.parameters, {"compute": middle}))
    p = base.parameters
    if loss <= p["E"]:
        return row | {
            "status": f"refused: the variant's loss {loss:.4g} is below the baseline's E {p['E']:.4g}"
        }
    ln_m = math.log(p["A"] / (loss - p["E"])) / p["alpha"] - math.log(middle)
    if not abs(ln_m) < MAX_LN:
        return row | {"status": f"refused: ln m = {ln_m:.4g} is beyond a factor of a million"}
    return row | {"compute_multiplier": math.exp(ln_m), "status": "converged"}


def _put_back(comparison: Comparison, variant: str) -> Iterator[dict[str, Any]]:
    """The headline with the runs of exclusions.csv counted after all."""
    study = comparison.study
    if not study.outliers:
        return
    value = f"{len(study.outliers)} runs of {EXCLUSIONS_FILE}"
    cells, baseline = put_back(study.cells), study.plan.baseline
    try:
        pairs = match_pairs(cells, baseline, variant, role=LADDER_ROLES, allow=comparison.allow)
    except RefusalError as refusal:
        yield refused(variant, "put_back", value, refusal)
        return
    arms = pairs.on(EXACT)
    yield row_of(arms, "put_back", value, partial(pair_slope, arms, LEVEL))


def _by_axis(comparison: Comparison, variant: str) -> dict[str, float]:
    """Headline ln m on every axis that counts FLOPs."""
    found = {}
    for axis in COMPUTE_AXES:
        if axis == WALL:
            continue
        try:
            arms = comparison.arms(Question(variant, HEADLINE, axis, MATCHED))
            found[axis] = pair_slope(arms, LEVEL).ln_m
        except RefusalError:
            continue
    return found
