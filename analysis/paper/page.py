"""The page "claimed, re-analysed, replicated elsewhere, measured here"; sentences follow from the numbers."""

from collections.abc import Iterator, Sequence
from typing import Any

from analysis.figures.base import Drawn
from analysis.paper.figures.base import PALETTE
from analysis.paper.numbers import Numbers
from analysis.paper.sections import AXES, claimed, elsewhere, here, reanalysed, shown
from analysis.paper.tables import tables
from analysis.published.attnres_scaling import CLAIM, VARIANTS
from analysis.report.document import Answers, Code, Document, Inline, Line, Link, Picture, Section, line
from analysis.wording import p_text

SOURCE = "Attention Residuals, Kimi Team, arXiv 2603.15031"
SIDE_BY_SIDE = "side_by_side"
SIGNIFICANT = 0.05


def page_of(numbers: Numbers, figures: Sequence[Drawn]) -> Document:
    """The whole page."""
    pictures = {f.name: Picture(f.name, f.title, f.caption) for f in figures if f.exists}
    first = pictures.pop(SIDE_BY_SIDE)
    return Document(
        title="Attention Residuals: claimed, re-analysed, replicated elsewhere, measured here",
        lead=line(f"Every published number from {SOURCE}, through this project's own estimators."),
        blocks=(
            _answers(numbers),
            Section("Side by side", "side-by-side", (first,)),
            claimed(numbers),
            reanalysed(numbers),
            elsewhere(numbers),
            here(numbers),
            Section("Figures of the paper", "figures", tuple(pictures.values())),
            tables(),
        ),
        colours=tuple((style.colour, style.dark_colour) for style in PALETTE.values()),
    )


def _answers(numbers: Numbers) -> Answers:
    again = [_answer(numbers.answer(variant)) for variant in VARIANTS]
    return Answers(
        (
            ("Claimed", (_claim(numbers),)),
            ("Re-analysed", (*again, _scale(numbers))),
            ("Replicated elsewhere", tuple(_others(numbers))),
            ("Measured here", tuple(_own(numbers))),
        )
    )


def _claim(numbers: Numbers) -> Line:
    """The claim, and what its own digits leave open."""
    digits = numbers.rounding[0]
    return line(
        f"Block saves {CLAIM.compute_multiplier:g}x at {CLAIM.compute_pflops_days:g} PFLOP/s-days, stated ",
        "without an interval; its printed digits alone allow ",
        Link(f"{digits['lo']:.2f} to {digits['hi']:.2f}", "claimed"),
        ".",
    )


def _answer(m: dict[str, Any]) -> Line:
    return line(Code(m["variant"]), ": ", Link(shown(m), "reanalysed"), f", {m['verdict']}.")


def _scale(numbers: Numbers) -> Line:
    paired = [test for test in numbers.tests if test["test"].startswith("paired")]
    words = ", ".join(f"{test['variant']} {p_text(test['p'])}" for test in paired)
    resolved = [test["variant"] for test in paired if test["p"] < SIGNIFICANT]
    verdict = f"resolved for {', '.join(resolved)}" if resolved else "resolved for no arm"
    return line(
        "That the saving changes with scale is ", Link(verdict, "reanalysed"), f" (paired slope, p: {words})."
    )


def _others(numbers: Numbers) -> Iterator[Line]:
    for r in numbers.elsewhere:
        source = r["source"].split()[0]
        yield line(Code(r["variant"]), f", {source}: ", Link(shown(r), "elsewhere"), f", {r['verdict']}.")
    known = [r["difference_nats"] for r in numbers.differences if r["difference_nats"] is not None]
    better = f"{sum(value > 0 for value in known)} are better"
    yield line(f"Of {len(known)} published pairs, ", Link(better, "elsewhere"), " than their baseline.")


def _own(numbers: Numbers) -> Iterator[Line]:
    if not numbers.here:
        yield line("No study of this project is committed yet.")
    for r in numbers.here:
        axis = AXES.get(r["compute_axis"], r["compute_axis"])
        number: Inline = Link(shown(r), "here") if r["compute_multiplier"] is not None else "no number"
        yield line(Code(r["variant"]), f", {r['study']}, {axis}: ", number, f", {r['verdict']}.")
