"""The first screen: how much compute, how sure, at what cost, where not resolved. Every word is computed."""

import math
from collections.abc import Iterator

import numpy as np

from analysis.comparison import MATCHED, TUNED
from analysis.compute_axes import EXACT, TOKENS, WALL
from analysis.figures.multiplier_by_axis import AXIS_WORDS
from analysis.headline import Multiplier, multiplier_of
from analysis.report.choices import behind
from analysis.report.document import Answers, Code, Inline, Line, Link, Strong, joined, line
from analysis.report.facts import Facts
from analysis.wording import (
    count_of,
    digits,
    interval_text,
    level_text,
    loss_text,
    multiplier_text,
    percent,
    spread,
)


def answers(facts: Facts) -> Answers:
    """The four questions and their answers."""
    return Answers(
        (
            ("How much compute does it save?", tuple(_saving(facts, arm) for arm in facts.arms)),
            ("How sure is that?", tuple(_certainty(facts))),
            ("At what cost in time and memory?", tuple(_cost(facts, arm) for arm in facts.arms)),
            (
                "Where is it not resolved?",
                tuple(_unresolved(facts)) or (line("Every comparison of this study is resolved."),),
            ),
        )
    )


def _number(m: Multiplier, anchor: str) -> Line:
    return (Link(f"{multiplier_text(m.value, m.lo, m.hi)} {interval_text(m.lo, m.hi)}", anchor),)


def _saving(facts: Facts, arm: str) -> Line:
    m = facts.headline(arm)
    if m.value is None:
        return line(Code(arm), ": ", Strong("no number"), f", {m.reason}.")
    number = _number(m, behind(arm, MATCHED))
    if m.verdict.startswith("saves compute"):
        words = line("the baseline needs ", number, " times its compute for the same loss")
    elif m.verdict.startswith("costs compute"):
        words = line("the baseline needs only ", number, " times its compute for the same loss")
    else:
        words = line("the estimate is ", number)
    return line(Code(arm), ": ", Strong(m.verdict), "; ", words, ".")


def _certainty(facts: Facts) -> Iterator[Line]:
    headlines = [facts.headline(arm) for arm in facts.arms]
    numbers = [m for m in headlines if m.value is not None]
    for arm in facts.arms:
        pairs, m = facts.pairs(arm), facts.headline(arm)
        if pairs is not None and m.value is not None:
            units = f"; as branches of trunks they count as {pairs.num_clusters}." if pairs.clustered else "."
            span = max(pairs.compute_baseline) / min(pairs.compute_baseline)
            yield line(
                Code(arm), f": {level_text(m.level)} interval from ",
                Link(count_of(pairs.num_pairs, "run pair"), behind(arm, MATCHED)),
                f" at {count_of(pairs.num_sizes, 'size')} over a {digits(span, 2)}-fold range of compute",
                units,
            )  # fmt: skip
    pooled = facts.fits("noise")["pooled"]
    if pooled["sd"] is not None:
        yield line(
            "A run repeated with another seed moves by ",
            Link(f"{loss_text(pooled['sd'])} nats", "noise"),
            f" (sd, {count_of(pooled['dof'], 'degree')} of freedom).",
        )
    else:
        yield ("Seed noise is not known: no size has two finished seeds.",)
    yield _null_control(facts)
    for arm in facts.controls:
        yield _overhead_control(facts, arm)
    held = [row for row in facts.fits("holdout") if row["inside"] is not None]
    if held:
        inside = sum(bool(row["inside"]) for row in held)
        yield line(
            "Predicted from the other budgets, the largest one lies inside its interval in ",
            Link(f"{inside} of {len(held)} fits", "holdout"),
            ".",
        )
    if numbers:
        yield _worst_left_out(facts)


def _null_control(facts: Facts) -> Line:
    null = facts.null
    if null.value is None:
        return line("No control of the baseline against its own other seeds: ", null.reason, ".")
    assert null.lo is not None and null.hi is not None
    passed = null.lo <= 1.0 <= null.hi
    words = (
        "contains 1, as it must"
        if passed
        else "does not contain 1: the intervals of this study are too narrow"
    )
    return line(
        "The baseline against its own other seeds gives ",
        _number(null, behind(null.variant, MATCHED)),
        f": it {words}.",
    )


def _overhead_control(facts: Facts, arm: str) -> Line:
    """An arm that only costs: m is C_b / C_v on exact FLOPs and 1 at equal tokens, or something is wrong."""
    exact, tokens, pairs = facts.headline(arm), facts.headline(arm, TOKENS), facts.pairs(arm)
    words = line("The control ", Code(arm), ", which costs compute and changes nothing, ")
    if exact.value is None or tokens.value is None or pairs is None:
        return line(*words, "gives no number: ", exact.reason or tokens.reason, ".")
    assert tokens.lo is not None and tokens.hi is not None and exact.lo is not None and exact.hi is not None
    rungs = np.log(pairs.compute_baseline / pairs.compute_variant)
    cost = math.exp(float(np.average(rungs, weights=pairs.num_seeds)))
    passed = _holds(exact.lo, cost, exact.hi) and _holds(tokens.lo, 1.0, tokens.hi)
    return line(
        *words, "gives ", _number(exact, behind(arm, MATCHED)),
        f" where its cost makes it {multiplier_text(cost)}, and ", _number(tokens, behind(arm, MATCHED)),
        " at equal tokens, where it is 1: ",
        "as it must." if passed else "this study does not measure what it should.",
    )  # fmt: skip


def _holds(lo: float, value: float, hi: float) -> bool:
    """Whether ``value`` lies between ``lo`` and ``hi``, but for rounding."""
    return lo * (1 - 1e-9) <= value <= hi * (1 + 1e-9)


def _worst_left_out(facts: Facts) -> Line:
    rows = [
        r
        for r in facts.fits("sensitivity")
        if r["kind"] == "leave_one_size_out" and r["compute_multiplier"] is not None
    ]
    parts: list[str] = []
    for arm in facts.arms:
        own = [r["compute_multiplier"] for r in rows if r["variant"] == arm]
        if own:
            parts.append(f"{arm} {spread(own, multiplier_text)}")
    if not parts:
        return line("Leaving out one size leaves too few for a ", Link("multiplier", "sensitivity"), ".")
    return line(
        "Leaving out one size at a time, the ", Link("multiplier", "sensitivity"), f" is {'; '.join(parts)}."
    )


def _cost(facts: Facts, arm: str) -> Line:
    cost, wall = facts.costs[arm], facts.headline(arm, WALL)
    parts: list[Line] = []
    if cost.compute:
        parts.append(line(f"training FLOPs {_change(cost.compute)}, parameters {_change(cost.parameters)}"))
    if cost.throughput:
        parts.append(line(f"tokens per second {_change(cost.throughput)} (interleaved)"))
    elif cost.cell_speed:
        parts.append(line(f"tokens per second {_change(cost.cell_speed)} (of its cells: an indication)"))
    if cost.memory:
        parts.append(line(f"peak memory {_change(cost.memory)}"))
    if wall.value is None:
        parts.append(line(f"no wall-clock multiplier, {wall.reason}"))
    else:
        number = _number(wall, behind(arm, MATCHED))
        parts.append(line("in wall-clock time the multiplier is ", number, f", {wall.verdict}"))
    text: list[Inline] = []
    for part in parts:
        text += ["; " if text else "", *part]
    return line(Code(arm), ": ", tuple(text), ".")


def _change(ratios: list[float]) -> str:
    if not ratios:  # imported runs do not say
        return "unknown"
    return spread([ratio - 1 for ratio in ratios], percent)


def _unresolved(facts: Facts) -> Iterator[Line]:
    """Runs that are not there, comparisons without a resolved answer, and every note on the pairs."""
    counts = facts.fits("counts")
    lost = {key: counts[key] for key in ("diverged", "failed", "interrupted", "missing") if counts[key]}
    if lost:
        words = ", ".join(f"{number} {key}" for key, number in lost.items())
        planned = count_of(counts["planned"], "planned run")
        yield line("Of ", Link(planned, "counts"), f" {words}.")
    for axis, rate in ((EXACT, MATCHED), (WALL, MATCHED), (EXACT, TUNED)):
        for words, arms in _open_headlines(facts, axis, rate).items():
            where = AXIS_WORDS[axis] + (", tuned rates" if rate == TUNED else "")
            yield line(*joined([Code(arm) for arm in arms]), f", {where}: {words}.")
    yield from _open_rest(facts)
    for note in facts.notes:
        yield line(f"{note}.")


def _open_headlines(facts: Facts, axis: str, rate: str) -> dict[str, list[str]]:
    """Verdict or reason -> the arms whose headline it leaves open."""
    found: dict[str, list[str]] = {}
    for arm in facts.arms:
        m = facts.headline(arm, axis, rate)
        if m.value is None or m.verdict.startswith("not resolved"):
            found.setdefault(m.reason or m.verdict, []).append(arm)
    return found


def _open_rest(facts: Facts) -> Iterator[Line]:
    """How many answers of the other estimators and axes are open; the table has each."""
    table = facts.study.multipliers
    own = [multiplier_of(row) for _, row in table[table["variant"].isin(facts.arms)].iterrows()]
    refused = sum(m.value is None for m in own)
    unresolved = sum(m.value is not None and m.verdict.startswith("not resolved") for m in own)
    if refused + unresolved:
        counted = Link(f"Over all {len(own)} answers", "multipliers")
        yield line(
            counted,
            f" (arms, estimators, axes, rates): {unresolved} not resolved, {refused} without a number.",
        )
