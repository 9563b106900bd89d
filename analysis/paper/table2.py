"""Table 2 of the AttnRes paper through this project's own estimators: laws, multipliers, tests."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.fit_result import FitResult
from analysis.forms.base import form_named
from analysis.multipliers.base import LEVEL, MULTIPLIERS, Estimate, PairedArms, RefusalError
from analysis.multipliers.pair_arrays import estimate_pair_slope
from analysis.multipliers.pair_slope import inputs_of, pair_slope_at
from analysis.published.attnres_scaling import (
    BASELINE,
    FLOPS_PER_PFLOPS_DAY,
    PLOTTED_COMPUTE_PFLOPS_DAYS,
    TABLE_2,
    VARIANTS,
)
from analysis.solve import fit
from analysis.verdicts import verdict_of

Floats = NDArray[np.float64]

PLOTTED, SIX_ND = "plotted", "6nd"
AXES: dict[str, Floats] = {
    SIX_ND: np.array([cell.compute_6nd for cell in TABLE_2]),
    PLOTTED: np.array(PLOTTED_COMPUTE_PFLOPS_DAYS) * FLOPS_PER_PFLOPS_DAY,
}
"""Compute of the five sizes, FLOPs: 6 x active parameters x tokens, and as Figure 4 has it."""

PAPER_FORM = "pair_slope"
"""Estimator of the re-analysis, at E = 0: the paper's law L = A C^-alpha has no irreducible loss."""

HALF_DIGIT = 0.0005
"""Losses and exponents are printed to three decimals."""

ROUNDING_DRAWS, ROUNDING_SEED = 4000, 0


def losses(arm: str) -> Floats:
    """Validation losses of ``arm``, nats a token, by rising size."""
    return np.array([cell.loss[arm] for cell in TABLE_2])


def paired(variant: str, axis: str) -> PairedArms:
    """Table 2 as run pairs: one run a cell, the compute of both arms counted alike."""
    return arms_of(
        variant,
        BASELINE,
        axis,
        sizes=[f"{cell.params_active / 1e6:g}M" for cell in TABLE_2],
        params=np.array([cell.params_active for cell in TABLE_2]),
        tokens=np.array([cell.tokens for cell in TABLE_2]),
        compute=AXES[axis],
        loss_baseline=losses(BASELINE),
        loss_variant=losses(variant),
    )


def arms_of(
    variant: str,
    baseline: str,
    axis: str,
    *,
    sizes: Sequence[str],
    params: Floats,
    tokens: Floats,
    compute: Floats,
    loss_baseline: Floats,
    loss_variant: Floats,
) -> PairedArms:
    """Published losses, one run a size and arm, as the estimators take them."""
    number = len(sizes)
    return PairedArms(
        variant=variant,
        baseline=baseline,
        compute_axis=axis,
        sizes=tuple(sizes),
        budget=compute,
        params_baseline=params,
        params_variant=params,
        tokens=tokens,
        compute_baseline=compute,
        compute_variant=compute,
        loss_baseline=loss_baseline,
        loss_variant=loss_variant,
        num_seeds=np.ones(number),
        pair_rung=np.arange(number),
        pair_seed=np.zeros(number, dtype=np.int64),
        pair_loss_baseline=loss_baseline,
        pair_loss_variant=loss_variant,
        pair_spec_ids=tuple(("", "") for _ in range(number)),
    )


def laws(axis: str) -> dict[str, FitResult]:
    """arm -> its power law on ``axis``, compute in PFLOP/s-days as in the paper."""
    compute = AXES[axis] / FLOPS_PER_PFLOPS_DAY
    form = form_named("power_law")
    return {arm: fit(form, {"compute": compute}, losses(arm), group=arm) for arm in (BASELINE, *VARIANTS)}


def multiplier_rows(axis: str) -> Iterator[dict[str, Any]]:
    """Rows of multipliers.csv: the re-analysis first, then every registered estimator, refusals included."""
    for variant in VARIANTS:
        arms = paired(variant, axis)
        yield estimate_row(arms, PAPER_FORM, pair_slope_at(arms, LEVEL, 0.0))
    for name in MULTIPLIERS:
        for variant in VARIANTS:
            yield answer_row(paired(variant, axis), name)


def answer_row(arms: PairedArms, estimator: str) -> dict[str, Any]:
    """The row of an estimator's answer, or of its refusal."""
    try:
        return estimate_row(arms, estimator, MULTIPLIERS.get(estimator)(arms, LEVEL))
    except RefusalError as refusal:
        return _base_row(arms, estimator) | {"verdict": "refused", "status": f"refused: {refusal}"}


def estimate_row(arms: PairedArms, estimator: str, estimate: Estimate) -> dict[str, Any]:
    """The row of one estimate."""
    return _base_row(arms, estimator) | {
        "form": estimate.form,
        "irreducible": estimate.irreducible,
        "at": estimate.at,
        "compute_multiplier": estimate.compute_multiplier,
        "lo": math.exp(estimate.lo),
        "hi": math.exp(estimate.hi),
        "dof": estimate.dof,
        "extrapolated": estimate.extrapolated,
        "verdict": verdict_of(estimate, arms.num_sizes),
        "status": estimate.status,
    }


def _base_row(arms: PairedArms, estimator: str) -> dict[str, Any]:
    return {
        "variant": arms.variant,
        "baseline": arms.baseline,
        "estimator": estimator,
        "form": "",
        "compute_axis": arms.compute_axis,
        "rate": "matched",
        "irreducible": "",
        "level": LEVEL,
        "n_pairs": arms.num_pairs,
        "extrapolated": False,
    }


def slope_tests(axis: str) -> Iterator[dict[str, Any]]:
    """Do the arms' exponents differ? Paired and unpaired tests of each variant, with their p."""
    x = np.log(AXES[axis])
    for variant in VARIANTS:
        y_b, y_v = np.log(losses(BASELINE)), np.log(losses(variant))
        pairs = stats.linregress(x, y_b - y_v)
        yield {
            "variant": variant,
            "test": "paired slope: t-test of the slope of ln(L_b / L_v) on ln C",
            "p": float(pairs.pvalue),
        }
        yield {
            "variant": variant,
            "test": "ANCOVA, unpaired: t-test of the difference of the two arms' slopes",
            "p": _unpaired(x, y_b, y_v),
        }


def _unpaired(x: Floats, y_b: Floats, y_v: Floats) -> float:
    """p of equal slopes of two straight lines with a common residual variance."""
    lines = [stats.linregress(x, y) for y in (y_b, y_v)]
    rest = [y - (line.intercept + line.slope * x) for y, line in zip((y_b, y_v), lines, strict=True)]
    dof = 2 * (len(x) - 2)
    variance = sum(float(r @ r) for r in rest) / dof
    spread = float(((x - x.mean()) ** 2).sum())
    t = (lines[0].slope - lines[1].slope) / math.sqrt(2 * variance / spread)
    return float(2 * stats.t.sf(abs(t), dof))


def size_rows(axis: str) -> Iterator[dict[str, Any]]:
    """Size by size: losses, difference, and the multiplier that the size alone gives (E = 0)."""
    for variant in VARIANTS:
        arms = paired(variant, axis)
        rungs = estimate_pair_slope(*inputs_of(arms), 0.0).rung_ln_m[0]
        for i, size in enumerate(arms.sizes):
            yield {
                "variant": variant,
                "size": size,
                "compute": float(arms.compute_baseline[i]),
                "loss_baseline": float(arms.loss_baseline[i]),
                "loss_variant": float(arms.loss_variant[i]),
                "difference": float(arms.loss_baseline[i] - arms.loss_variant[i]),
                "compute_multiplier": math.exp(rungs[i]),
            }


def sensitivity_rows(axis: str) -> Iterator[dict[str, Any]]:
    """E held at other values, one size left out, losses rounded otherwise to the printed digits."""
    for variant in VARIANTS:
        arms = paired(variant, axis)
        for irreducible in (0.0, 0.5, 1.0, 1.5):
            yield _changed(arms, "irreducible loss E", f"{irreducible:g}", irreducible)
        for i, size in enumerate(arms.sizes):
            yield _changed(_without(arms, i), "one size left out", size, 0.0)
        yield _rounding(arms)


def _changed(arms: PairedArms, kind: str, value: str, irreducible: float) -> dict[str, Any]:
    found = pair_slope_at(arms, LEVEL, irreducible)
    return {
        "variant": arms.variant,
        "kind": kind,
        "value": value,
        "compute_multiplier": found.compute_multiplier,
        "lo": math.exp(found.lo),
        "hi": math.exp(found.hi),
    }


def _without(arms: PairedArms, i: int) -> PairedArms:
    keep = np.arange(len(arms.sizes)) != i
    cut: dict[str, Any] = {
        field.name: getattr(arms, field.name)[keep]
        for field in dataclasses.fields(arms)
        if isinstance(getattr(arms, field.name), np.ndarray)
    }
    cut |= {"pair_rung": np.arange(int(keep.sum())), "pair_spec_ids": arms.pair_spec_ids[:-1]}
    cut["sizes"] = tuple(size for k, size in enumerate(arms.sizes) if keep[k])
    return dataclasses.replace(arms, **cut)


def _rounding(arms: PairedArms) -> dict[str, Any]:
    """Range of m over losses that would be printed alike: every loss moves within its last digit."""
    rng = np.random.default_rng(ROUNDING_SEED)
    shape = (ROUNDING_DRAWS, 2, len(arms.sizes))
    moved = np.stack([arms.loss_baseline, arms.loss_variant]) + rng.uniform(-HALF_DIGIT, HALF_DIGIT, shape)
    x = np.broadcast_to(np.log(arms.compute_baseline), moved[:, 0].shape)
    result = estimate_pair_slope(x, x, moved[:, 0], moved[:, 1], np.ones_like(x), 0.0)
    lo, middle, hi = np.exp(np.quantile(result.ln_m, [0.025, 0.5, 0.975]))
    return {
        "variant": arms.variant,
        "kind": "rounding of the losses",
        "value": f"{ROUNDING_DRAWS} draws within the last digit",
        "compute_multiplier": float(middle),
        "lo": float(lo),
        "hi": float(hi),
    }
