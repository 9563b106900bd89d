"""The cards of the first screen and what its switches may show: rows of multipliers.csv, in words."""

import math
from typing import Any

from analysis.comparison import HEADLINE, MATCHED, TUNED
from analysis.compute_axes import COMPUTE_AXES, EXACT
from analysis.figures.multiplier_by_axis import AXIS_WORDS
from analysis.figures.style import Palette
from analysis.headline import Multiplier, multiplier_of
from analysis.multipliers.base import LEVEL, Estimate
from analysis.report.document import Card, Cards, Choice, Switch
from analysis.report.facts import Facts
from analysis.sensitivity import IRREDUCIBLE_SHARES
from analysis.verdicts import verdict_of
from analysis.wording import count_of, digits, interval_text, level_text, multiplier_text

RATE_WORDS = {
    MATCHED: "matched: the baseline's rate in every arm",
    TUNED: "tuned: each arm at its own best rate",
}
ESTIMATOR_WORDS = {
    "pair_slope": "pair + slope (headline)",
    "joint": "joint fit, profile likelihood",
    "fitted_curve": "ratio of fitted curves",
    "surface": "L(N, D) surfaces",
}
PROFILED = "profiled"


def tone_of(verdict: str) -> str:
    """good, bad or open: what a verdict says, for colour beside its words."""
    if verdict.startswith("saves compute"):
        return "good"
    return "bad" if verdict.startswith("costs compute") else "open"


def cards_of(facts: Facts, palette: Palette) -> Cards:
    """One card an arm, with every row of multipliers.csv and every rule for E behind the switches."""
    choices = {arm: _choices(facts, arm) for arm in facts.arms}
    first = "|".join((EXACT, HEADLINE, MATCHED, PROFILED))
    cards = tuple(Card(arm, palette[arm].index, choices[arm][first]) for arm in facts.arms)
    return Cards(cards, _switches(facts), choices)


def _switches(facts: Facts) -> tuple[Switch, ...]:
    table = facts.study.multipliers
    used = dict.fromkeys(table.loc[table["variant"].isin(facts.arms), "estimator"])
    estimators = [HEADLINE, *(name for name in used if name != HEADLINE)]
    rules = dict.fromkeys(rule for arm in facts.arms for rule in _rules_for_e(facts, arm))
    return (
        Switch("axis", "Compute counted as", tuple((axis, AXIS_WORDS[axis]) for axis in COMPUTE_AXES)),
        Switch(
            "estimator", "Estimator", tuple((name, ESTIMATOR_WORDS.get(name, name)) for name in estimators)
        ),
        Switch("rate", "Learning rates", tuple(RATE_WORDS.items())),
        Switch(
            "irreducible",
            "Irreducible loss E",
            ((PROFILED, "profiled, shared by the arms"), *((rule, rule) for rule in rules)),
        ),
    )


def _choices(facts: Facts, arm: str) -> dict[str, Choice]:
    """Values of the switches, joined by |, -> what they show."""
    table = facts.study.multipliers
    own = table[table["variant"] == arm]
    found = {}
    for keys, rows in own.groupby(["compute_axis", "estimator", "rate"], sort=False):
        axis, estimator, rate = map(str, keys)
        choice = _choice_of_rows([multiplier_of(row) for _, row in rows.iterrows()], behind(arm, rate))
        found["|".join((axis, estimator, rate, PROFILED))] = choice
    for rule, row in _rules_for_e(facts, arm).items():
        found["|".join((EXACT, HEADLINE, MATCHED, rule))] = _choice_of_rule(facts, row)
    return found


def behind(arm: str, rate: str) -> str:
    """Anchor of the runs behind the multipliers of ``arm``."""
    return "behind-" + "".join(c if c.isalnum() else "-" for c in f"{arm}-{rate}")


def _choice_of_rows(rows: list[Multiplier], anchor: str) -> Choice:
    """Several rows differ in the compute they hold at: the largest is shown, the others are named."""
    known = [row for row in rows if row.value is not None]
    row = max(known, key=lambda r: r.at or 0.0) if known else rows[0]
    notes = [count_of(row.n_pairs, "run pair")]
    if row.at is not None:
        notes.append(f"at {digits(row.at, 3)} FLOPs")
        others = [r for r in known if r is not row]
        notes += [f"{multiplier_text(r.value, r.lo, r.hi)} at {digits(r.at, 3)} FLOPs" for r in others]
    if row.extrapolated:
        notes.append("read outside the baseline's data")
    if row.value is None:
        return Choice("no number", "", "refused", "open", row.reason, anchor)
    return _choice(row.value, row.lo, row.hi, row.level, row.verdict, "; ".join(notes), anchor)


def _choice(
    value: float, lo: float | None, hi: float | None, level: float, verdict: str, note: str, anchor: str
) -> Choice:
    interval = f"{level_text(level)} {interval_text(lo, hi)}" if lo is not None else "no interval"
    return Choice(f"{multiplier_text(value, lo, hi)}×", interval, verdict, tone_of(verdict), note, anchor)


def _rules_for_e(facts: Facts, arm: str) -> dict[str, dict[str, Any]]:
    """Words of a rule for E -> its row of fits/sensitivity.json; the profiled one is the headline."""
    rows = [r for r in facts.fits("sensitivity") if r["variant"] == arm and r["kind"] == "irreducible"]
    free = [row for row in rows if row["value"].startswith("free")]
    fixed = [row for row in rows if row["value"].startswith("fixed")]
    rules = {"free in each arm": free[0]} if free else {}
    if fixed:
        names = (
            f"fixed at {s * 100:g} % of the lowest loss" if s else "fixed at 0" for s in IRREDUCIBLE_SHARES
        )
        rules |= dict(zip(names, fixed, strict=True))
    return rules


def _choice_of_rule(facts: Facts, row: dict[str, Any]) -> Choice:
    m, lo, hi = row["compute_multiplier"], row["lo"], row["hi"]
    anchor = behind(row["variant"], MATCHED)
    if m is None:
        return Choice(
            "no number", "", "refused", "open", str(row["status"]).removeprefix("refused: "), anchor
        )
    verdict, pairs = "no interval", facts.pairs(row["variant"])
    if lo is not None and pairs is not None:
        estimate = Estimate(
            math.log(m), math.log(lo), math.log(hi), 0.0, None, LEVEL, "", "", status=row["status"]
        )
        verdict = verdict_of(estimate, pairs.num_sizes)
    return _choice(m, lo, hi, LEVEL, verdict, f"E {row['value']}", anchor)
