"""Every multiplier of a study: arms x estimators x compute axes, refusals included -> multipliers.csv."""

import dataclasses
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy import stats

from analysis.compute_axes import COMPUTE_AXES, EXACT, WALL
from analysis.controls import null_pairs
from analysis.multipliers.base import (
    LEVEL,
    MULTIPLIERS,
    Estimate,
    PairedArms,
    RefusalError,
    RefusalReason,
)
from analysis.pairing import MUST_AGREE, Pairs, match_pairs
from analysis.plan_file import LADDER_ROLES
from analysis.rates import tuned_pairs
from analysis.schema import MULTIPLIER_COLUMNS
from analysis.study import MULTIPLIERS_FILE, Study
from analysis.tabular import write_table
from analysis.verdicts import verdict_of
from attnres.errors import UserError

HEADLINE = "pair_slope"
MATCHED, TUNED = "matched", "tuned"


@dataclass(frozen=True)
class Question:
    """One row of multipliers.csv before it is answered."""

    variant: str
    estimator: str
    compute_axis: str
    rate: str


@dataclass(frozen=True)
class Answer:
    """A question with its pairs and its estimate, or the reason why there is none."""

    question: Question
    baseline: str
    arms: PairedArms | None
    estimate: Estimate | None
    refusal: str = ""

    def row(self) -> dict[str, Any]:
        """The row of multipliers.csv."""
        question, estimate, arms = self.question, self.estimate, self.arms
        row: dict[str, Any] = {
            "variant": question.variant,
            "baseline": self.baseline,
            "estimator": question.estimator,
            "form": "",
            "compute_axis": question.compute_axis,
            "rate": question.rate,
            "irreducible": "",
            "level": LEVEL,
            "n_pairs": arms.num_pairs if arms else 0,
            "extrapolated": False,
            "verdict": "refused",
            "status": f"refused: {self.refusal}",
        }
        if estimate is None or arms is None:
            return row
        return row | {
            "form": estimate.form,
            "irreducible": estimate.irreducible,
            "at": estimate.at,
            "compute_multiplier": estimate.compute_multiplier,
            "lo": math.exp(estimate.lo),
            "hi": math.exp(estimate.hi),
            "level": estimate.level,
            "dof": estimate.dof,
            "extrapolated": estimate.extrapolated,
            "verdict": verdict_of(estimate, arms.num_sizes),
            "status": estimate.status,
        }


def write_multipliers(comparison: "Comparison") -> list[Answer]:
    """Answer every question of the study and write multipliers.csv."""
    study = comparison.study
    answers = [comparison.answer(question) for question in questions(study)]
    write_table(study.folder / MULTIPLIERS_FILE, MULTIPLIER_COLUMNS, [a.row() for a in answers])
    study.__dict__.pop("multipliers", None)
    return answers


def questions(study: Study) -> Iterator[Question]:
    """The rows of multipliers.csv, the headline's first; the baseline against itself is among them."""
    plan = study.plan
    arms = [arm for arm in plan.arms if arm != plan.baseline]
    estimators = [HEADLINE, *(name for name in MULTIPLIERS if name != HEADLINE)]
    for estimator in estimators:
        for axis in COMPUTE_AXES:
            for variant in arms:
                yield Question(variant, estimator, axis, MATCHED)
    swept = bool((study.cells["role"] == "rate").any())
    for axis in COMPUTE_AXES if swept else (EXACT,):
        for variant in arms:
            yield Question(variant, HEADLINE, axis, TUNED)
    yield Question(plan.baseline, HEADLINE, EXACT, MATCHED)
    yield Question(null_label(plan.baseline), HEADLINE, EXACT, MATCHED)


def null_label(baseline: str) -> str:
    """Name of the control that compares the baseline with itself at other seeds."""
    return f"{baseline} (other seeds)"


class Comparison:
    """Answers questions about one study; pairs are matched once for all axes and estimators.

    Args:
        study: with runs.csv.
        allow: columns that may differ within pairs; such differences become notes.
    """

    def __init__(self, study: Study, allow: Collection[str] = ()) -> None:
        unknown = sorted(set(allow) - set(MUST_AGREE))
        if unknown:
            raise UserError(
                f"--allow {', '.join(unknown)}: columns that may be allowed are {', '.join(MUST_AGREE)}"
            )
        self.study = study
        self.allow = tuple(allow)
        self._matched: dict[tuple[str, str], Pairs | RefusalError] = {}

    def answer(self, question: Question) -> Answer:
        """The answer to one question; a refusal is an answer.

        Raises:
            UserError: no such arm, estimator or axis.
        """
        baseline = self.study.plan.baseline
        known = (*self.study.plan.arms, null_label(baseline))
        if question.variant not in known:
            raise UserError(f"unknown arm '{question.variant}': known are {', '.join(known)}")
        if question.compute_axis not in COMPUTE_AXES:
            raise UserError(
                f"unknown compute axis '{question.compute_axis}': known are {', '.join(COMPUTE_AXES)}"
            )
        estimator = MULTIPLIERS.get(question.estimator)
        arms: PairedArms | None = None
        try:
            arms = self.arms(question)
            estimate = estimator(arms, LEVEL)
            if question.compute_axis == WALL:
                estimate = _on_wall_clock(estimate, arms, self.study.throughput)
        except RefusalError as refusal:
            return Answer(question, baseline, arms, None, str(refusal))
        return Answer(question, baseline, arms, estimate)

    def arms(self, question: Question) -> PairedArms:
        """The pairs a question is about.

        Raises:
            RefusalError: there are none that may be compared.
        """
        key = (question.variant, question.rate)
        if key not in self._matched:
            try:
                self._matched[key] = self._match(question)
            except RefusalError as refusal:
                self._matched[key] = refusal
        found = self._matched[key]
        if isinstance(found, RefusalError):
            raise found
        return found.on(question.compute_axis)

    def _match(self, question: Question) -> Pairs:
        cells, baseline = self.study.cells, self.study.plan.baseline
        if question.variant == null_label(baseline):
            return null_pairs(cells, baseline, question.variant, self.allow)
        if question.rate == TUNED:
            return tuned_pairs(cells, baseline, question.variant, self.allow)
        return match_pairs(cells, baseline, question.variant, role=LADDER_ROLES, allow=self.allow)


def _on_wall_clock(estimate: Estimate, arms: PairedArms, throughput: pd.DataFrame) -> Estimate:
    """m_wall = m_tokens x throughput ratio, both uncertainties in quadrature.

    Ratios come from interleaved runs of the same shapes (plan.json), never from the wall time of
    cells that shared a machine. Over sizes the ratio is the geometric mean.

    Raises:
        RefusalError: a size of the comparison was not measured.
    """
    if arms.variant == arms.baseline:
        return estimate
    if throughput.empty:
        raise RefusalError(
            RefusalReason.NO_THROUGHPUT, "plan.json holds no ratios; a finished sweep adds them"
        )
    found = throughput[(throughput["variant"] == arms.variant) & (throughput["baseline"] == arms.baseline)]
    by_size = found.set_index("size")
    lacking = [size for size in dict.fromkeys(arms.sizes) if size not in by_size.index]
    if lacking:
        raise RefusalError(RefusalReason.NO_THROUGHPUT, f"{arms.variant} at {', '.join(lacking)} (plan.json)")
    used = by_size.loc[list(dict.fromkeys(arms.sizes))]
    logs = [math.log(ratio) for ratio in used["ratio"]]
    shift = sum(logs) / len(logs)
    normal = float(stats.norm.ppf(0.5 + estimate.level / 2))
    widths = [
        math.log(hi / lo) / (2 * normal) if lo > 0 and hi >= lo else 0.0
        for lo, hi in zip(used["lo"].fillna(0.0), used["hi"].fillna(0.0), strict=True)
    ]
    ratio_half = normal * math.sqrt(sum(w * w for w in widths)) / len(widths)
    centre = estimate.ln_m + shift
    return dataclasses.replace(
        estimate,
        ln_m=centre,
        lo=centre - math.hypot(estimate.ln_m - estimate.lo, ratio_half),
        hi=centre + math.hypot(estimate.hi - estimate.ln_m, ratio_half),
        sd=math.hypot(estimate.sd, ratio_half / normal),
        status="exact" if estimate.without_noise else estimate.status,
        facts=estimate.facts | {"throughput_ratio": math.exp(shift)},
    )
