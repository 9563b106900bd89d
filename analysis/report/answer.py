"""The first screen: how much compute, how sure, at what cost, where not resolved. Every word is computed."""

from collections.abc import Iterator

from analysis.comparison import MATCHED, TUNED
from analysis.compute_axes import WALL
from analysis.figures.multiplier_by_axis import AXIS_WORDS
from analysis.headline import Multiplier, multiplier_of
from analysis.report.choices import behind
from analysis.report.document import Answers, Code, Inline, Line, Link, Strong, line
from analysis.report.facts import Facts
from analysis.report.numbers import (
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
            span = max(pairs.compute_baseline) / min(pairs.compute_baseline)
            yield line(
                Code(arm), f": {level_text(m.level)} interval from ",
                Link(count_of(pairs.num_pairs, "run pair"), behind(arm, MATCHED)),
                f" at {count_of(pairs.num_sizes, 'size')} over a {digits(span, 2)}-fold range of compute.",
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
    return spread([ratio - 1 for ratio in ratios], percent)


def _unresolved(facts: Facts) -> Iterator[Line]:
    """Runs that are not there, comparisons without a resolved answer, and every note on the pairs."""
    counts = facts.fits("counts")
    lost = {key: counts[key] for key in ("diverged", "failed", "interrupted", "missing") if counts[key]}
    if lost:
        words = ", ".join(f"{number} {key}" for key, number in lost.items())
        planned = count_of(counts["planned"], "planned run")
        yield line("Of ", Link(planned, "counts"), f" {words}.")
    for (reason, rate), where in _open_questions(facts).items():
        places: list[Inline] = []
        for arm, axes in where.items():
            shown = "; ".join(f"{axis} ({', '.join(names)})" for axis, names in axes.items())
            places += ["; " if places else "", Code(arm), f", {shown}"]
        yield line(f"{reason}{', tuned rates' if rate == TUNED else ''}: ", tuple(places), ".")
    for note in facts.notes:
        yield line(f"{note}.")


Places = dict[str, dict[str, list[str]]]
"""Arm -> compute axis in words -> estimators."""


def _open_questions(facts: Facts) -> dict[tuple[str, str], Places]:
    """(reason or verdict, rate) -> where it applies."""
    found: dict[tuple[str, str], Places] = {}
    table = facts.study.multipliers
    for _, row in table[table["variant"].isin(facts.arms)].iterrows():
        m = multiplier_of(row)
        if m.value is None or m.verdict.startswith("not resolved"):
            axis = AXIS_WORDS.get(str(row["compute_axis"]), str(row["compute_axis"]))
            places = found.setdefault((m.reason or m.verdict, str(row["rate"])), {})
            places.setdefault(m.variant, {}).setdefault(axis, []).append(str(row["estimator"]))
    return found
