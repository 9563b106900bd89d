"""The report of made-up studies: what it says, where it takes it from, and that it follows the data."""

import html
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.commands import main
from analysis.figures import draw, draw_all
from analysis.plan_file import Plan
from analysis.report import report_of, write_report
from analysis.report.document import Answers, Cards, Code, Document, Line, Link, Section, Strong, Table
from analysis.report.html import to_html
from analysis.report.markdown import to_markdown
from analysis.study import Study
from analysis.wording import digits, interval_text, multiplier_text, p_text, percent
from attnres.errors import UserError
from tests.analysis.planted import (
    ARMS,
    PlantedStudy,
    plan_throughput,
    planted,
    planted_study,
    write_study,
)

BLOCK, FULL = ARMS[1:]


def analyse(folder: Path, *options: str) -> Study:
    """Every stage up to the report."""
    assert main(["report", "--study", str(folder), *options]) == 0
    return Study(folder)


def compare(folder: Path, *options: str) -> Study:
    """Every number of the report, without figures and pages."""
    assert main(["fits", "--study", str(folder)]) == 0
    assert main(["multipliers", "--study", str(folder), *options]) == 0
    return Study(folder)


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Block saves compute, Full costs compute."""
    folder = tmp_path_factory.mktemp("resolved")
    return analyse(planted_study(folder, compute_multiplier=(1.25, 0.8), overhead=0.03, curves=False))


@pytest.fixture(scope="module")
def null(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two arms of the same law, noisy."""
    folder = tmp_path_factory.mktemp("null")
    made = planted_study(folder, compute_multiplier=1.0, seeds=3, noise=0.004, correlation=0, curves=False)
    return compare(made)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """One run missing, the largest Full run out of memory, one stray run."""
    made = planted(compute_multiplier=(1.25, 0.8), seeds=2, curves=False)
    rows = [dict(row) for row in made.rows]
    stray = rows[0] | {"spec_id": "feedfacecafe", "excluded": True, "exclusion_reason": "off_grid"}
    for row in rows:
        if row["variant"] == FULL and row["depth"] == 6:
            lose(row, "failed", 10)
    lose(rows[3], "missing", None)
    folder = tmp_path_factory.mktemp("damaged")
    write_study(folder, replace(made, rows=[*rows, stray]))
    return analyse(folder)


def lose(row: dict[str, Any], status: str, step: int | None) -> None:
    """Make a row one of a run that did not finish."""
    row.update(dict.fromkeys(("val_loss", "val_loss_se", "train_loss", "val_bits_per_byte")))
    row.update(status=status, failed_at_step=step, excluded=True, exclusion_reason="incomplete")


def plain(line: Line) -> str:
    """A line as text."""
    return "".join(part if isinstance(part, str) else part.text for part in line)


def first(document: Document, kind: type) -> Any:
    """The first block of a kind."""
    return next(block for block in document.blocks if isinstance(block, kind))


def answer(document: Document, question: str) -> str:
    """The answer to one of the first screen's questions."""
    entries = dict(first(document, Answers).entries)
    return " ".join(plain(line) for line in entries[question])


def pages(study: Study) -> str:
    """Both files of the report, without figures."""
    document = report_of(study, [])
    return to_html(document, str) + to_markdown(document, "figures")


def rows_of(document: Document, anchor: str) -> list[list[str]]:
    """Cells of the first table of a section, as text."""
    table = next(block for block in section_of(document, anchor).blocks if isinstance(block, Table))
    return [list(table.columns), *([plain(cell) for cell in row.cells] for row in table.rows)]


def section(document: Document, anchor: str) -> str:
    """Everything a section says."""
    found = next(b for b in document.blocks if isinstance(b, Section) and b.anchor == anchor)
    return "\n".join(plain(line) for line in replace(document, blocks=(found,)).lines())


def headline(study: Study, arm: str, axis: str = "exact") -> pd.Series:
    """The row of multipliers.csv that the first card shows."""
    table = study.multipliers
    keys = {"variant": arm, "estimator": "pair_slope", "compute_axis": axis, "rate": "matched"}
    for name, value in keys.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


SAVING = "How much compute does it save?"
SURE = "How sure is that?"
COST = "At what cost in time and memory?"
OPEN = "Where is it not resolved?"


def test_the_first_screen_asks_the_four_questions(resolved: Study) -> None:
    document = report_of(resolved, [])
    assert isinstance(document.blocks[0], Cards)
    assert [question for question, _ in first(document, Answers).entries] == [SAVING, SURE, COST, OPEN]


def test_words_and_numbers_of_the_first_screen_are_those_of_the_table(resolved: Study) -> None:
    document = report_of(resolved, [])
    for arm, word in ((BLOCK, "saves compute: resolved"), (FULL, "costs compute: resolved")):
        row = headline(resolved, arm)
        assert row["verdict"] == word
        number = multiplier_text(row["compute_multiplier"], row["lo"], row["hi"])
        shown = f"{number} {interval_text(row['lo'], row['hi'])}"
        assert f"{arm}: {word}; the baseline needs {'only ' if arm == FULL else ''}{shown} times" in answer(
            document, SAVING
        )
        card = next(card for card in first(document, Cards).cards if card.arm == arm)
        assert (card.shown.number, card.shown.verdict) == (f"{number}×", word)
        assert card.shown.interval == f"95 % {interval_text(row['lo'], row['hi'])}"
    assert "training FLOPs +3.0 %" in answer(document, COST)


def test_every_row_of_the_table_is_behind_the_switches_or_named_by_them(resolved: Study) -> None:
    cards = first(report_of(resolved, []), Cards)
    allowed = [{value for value, _ in switch.options} for switch in cards.switches]
    for _, row in resolved.multipliers.iterrows():
        if row["variant"] not in cards.choices:
            continue
        key = f"{row['compute_axis']}|{row['estimator']}|{row['rate']}|profiled"
        choice = cards.choices[row["variant"]][key]
        if pd.isna(row["compute_multiplier"]):
            assert choice.number == "no number"
            assert choice.note == row["status"].removeprefix("refused: ")
        else:
            number = multiplier_text(row["compute_multiplier"], row["lo"], row["hi"])
            assert choice.number == f"{number}×" or number in choice.note
    for own in cards.choices.values():
        for key in own:
            assert all(value in options for value, options in zip(key.split("|"), allowed, strict=True)), key


def test_rules_for_e_behind_the_switch_are_those_of_the_sensitivity(resolved: Study) -> None:
    cards = first(report_of(resolved, []), Cards)
    rows = [
        r for r in resolved.read_fits("sensitivity") if r["variant"] == BLOCK and r["kind"] == "irreducible"
    ]
    fixed = [r for r in rows if r["value"].startswith("fixed")]
    choice = cards.choices[BLOCK]["exact|pair_slope|matched|fixed at 50 % of the lowest loss"]
    expected = multiplier_text(fixed[2]["compute_multiplier"], fixed[2]["lo"], fixed[2]["hi"])
    assert choice.number == f"{expected}×"
    assert choice.note == f"E {fixed[2]['value']}"


def test_r09_a_null_result_is_shown_as_one(null: Study) -> None:
    document = report_of(null, [])
    for arm in (BLOCK, FULL):
        assert headline(null, arm)["verdict"].startswith("not resolved at n = 5 sizes")
    assert "saves" not in answer(document, SAVING)
    assert "not resolved at n = 5 sizes: no detectable gain" in answer(document, SAVING)
    assert "not resolved at n = 5 sizes" in answer(document, OPEN)
    assert all(card.shown.tone == "open" for card in first(document, Cards).cards)


def test_r10_too_few_sizes_are_refused_in_words(tmp_path: Path) -> None:
    study = compare(planted_study(tmp_path, sizes=3, curves=False))
    document = report_of(study, [])
    assert f"{BLOCK}: no number, too few sizes: 3 with finished pairs" in answer(document, SAVING)
    assert all(card.shown.number == "no number" for card in first(document, Cards).cards)
    assert "no number" in pages(study)
    assert "4 needed" in pages(study)


def test_w12_missing_and_stray_runs_are_counted(damaged: Study) -> None:
    document = report_of(damaged, [])
    counts = section(document, "counts")
    assert "1 run not in the plan, left out: feedfacecafe." in counts
    assert "Of 30 planned runs 2 failed, 1 missing." in answer(document, OPEN)
    assert "27 of 30 planned runs finished" in plain(document.lead)
    header, *rows = rows_of(document, "counts")
    by_arm = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert by_arm[FULL]["failed"] == "2"
    assert by_arm["all arms"]["missing"] == "1"


def test_w13_unequal_coverage_is_said_and_the_lost_runs_are_listed(damaged: Study) -> None:
    document = report_of(damaged, [])
    counts = section(document, "counts")
    lost = [c.spec_id for c in damaged.plan.cells if c.variant == FULL and c.size == "d6w192"]
    assert len(lost) == 2
    for spec_id in lost:
        assert spec_id in counts
    assert "unequal coverage: full_attnres lacks d6w192 seed 0 (incomplete)" in answer(document, OPEN)
    pairs = [row for row in damaged.read_fits("pairs") if row["variant"] == FULL]
    assert "d6w192" not in {row["size"] for row in pairs}


def test_s11_every_number_rests_on_finished_runs(resolved: Study, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(resolved.folder, folder)
    runs = pd.read_csv(folder / "runs.csv", dtype=str, keep_default_na=False)
    runs.loc[0, ["status", "excluded", "exclusion_reason"]] = ["interrupted", "true", "incomplete"]
    runs.to_csv(folder / "runs.csv", index=False)
    with pytest.raises(
        UserError, match=r"rests on run 020064000000, which runs.csv does not hold as finished"
    ):
        write_report(Study(folder))


def test_s11_every_link_leads_to_runs(damaged: Study) -> None:
    document = report_of(damaged, [])
    anchors = set(document.anchors())
    links = document.links()
    assert links
    assert {link.anchor for link in links} <= anchors
    planned = {cell.spec_id for cell in damaged.plan.cells}
    assert {f"run-{spec_id}" for spec_id in planned} <= anchors
    for card in first(document, Cards).cards:
        behind = section_of(document, card.shown.behind)
        finished = set(damaged.runs.query("status == 'finished'")["spec_id"])
        spec_ids = {
            link.text
            for line in replace(document, blocks=(behind,)).lines()
            for link in line
            if isinstance(link, Link)
        }
        assert spec_ids
        assert spec_ids <= finished


def section_of(document: Document, anchor: str) -> Section:
    """The section, at any depth, with an anchor."""
    stack = [block for block in document.blocks if isinstance(block, Section)]
    while stack:
        one = stack.pop()
        if one.anchor == anchor:
            return one
        stack += [block for block in one.blocks if isinstance(block, Section)]
    raise AssertionError(anchor)


def test_s15_an_unequal_pair_is_refused_and_named_or_allowed_with_a_note(tmp_path: Path) -> None:
    made = planted(curves=False)
    for row in made.rows:
        if row["variant"] == FULL:
            row["seq_len"] = 64
    write_study(tmp_path, made)
    document = report_of(compare(tmp_path), [])
    assert f"{FULL}: no number, pairs differ in more than the stream: seq_len differs" in answer(
        document, SAVING
    )
    document = report_of(compare(tmp_path, "--allow", "seq_len"), [])
    assert f"{FULL}: no number" not in answer(document, SAVING)
    assert "seq_len differs in 7 of 7 pairs: 64" in answer(document, OPEN)


def test_s17_wall_clock_beside_flops(tmp_path: Path) -> None:
    planted_study(tmp_path, compute_multiplier=1.25, curves=False)
    plan_throughput(tmp_path, [BLOCK, FULL], 0.8, 0.79, 0.81)
    study = compare(tmp_path)
    cost = answer(report_of(study, []), COST)
    assert "tokens per second −20.0 % (interleaved)" in cost
    wall = headline(study, BLOCK, "wall")
    tokens = headline(study, BLOCK, "tokens")
    assert wall["compute_multiplier"] == pytest.approx(0.8 * tokens["compute_multiplier"], rel=1e-12)
    shown = f"{multiplier_text(wall['compute_multiplier'], wall['lo'], wall['hi'])} "
    assert f"in wall-clock time the multiplier is {shown}" in cost


def test_f17_the_checklist_is_filled_and_follows_the_table(resolved: Study, tmp_path: Path) -> None:
    items = dict(map(tuple, rows_of(report_of(resolved, []), "checklist")[1:]))
    assert len(items) > 20
    assert all(value.strip() for value in items.values())
    folder = tmp_path / "study"
    shutil.copytree(resolved.folder, folder)
    plan = Plan.model_validate_json((folder / "plan.json").read_bytes())
    gone = plan.cells[0].spec_id
    assert gone in items["points used"]
    shorter = plan.model_copy(update={"cells": tuple(c for c in plan.cells if c.spec_id != gone)})
    (folder / "plan.json").write_text(shorter.model_dump_json())
    runs = pd.read_csv(folder / "runs.csv", dtype=str, keep_default_na=False)
    runs[runs["spec_id"] != gone].to_csv(folder / "runs.csv", index=False)
    again = section(report_of(compare(folder), []), "checklist")
    assert gone not in again
    assert plan.cells[1].spec_id in again


def test_changed_losses_change_every_word_that_depends_on_them(resolved: Study, tmp_path: Path) -> None:
    """Block's losses raised until it costs compute: nothing of the old verdict is left anywhere."""
    folder = tmp_path / "study"
    shutil.copytree(resolved.folder, folder)
    before = report_of(resolved, [])
    runs = pd.read_csv(folder / "runs.csv", dtype=str, keep_default_na=False)
    own = runs["variant"] == BLOCK
    runs.loc[own, "val_loss"] = [repr(float(v) + 0.08) for v in runs.loc[own, "val_loss"]]
    runs.to_csv(folder / "runs.csv", index=False)
    study = compare(folder)
    draw(study, "scaling_curves")
    after = report_of(study, [])
    assert headline(study, BLOCK)["verdict"] == "costs compute: resolved"
    assert f"{BLOCK}: saves compute: resolved" in answer(before, SAVING)
    assert f"{BLOCK}: costs compute: resolved" in answer(after, SAVING)
    for question in (SAVING, SURE):
        assert answer(before, question) != answer(after, question)
    changed = (
        "multipliers",
        "pairs",
        "sensitivity",
        "budget",
        "models",
        "laws",
        "residuals",
        "holdout",
        "runs",
    )
    for anchor in changed:
        assert section(before, anchor) != section(after, anchor), anchor
    assert "saves compute" not in pages(study)
    assert "saves compute" not in (folder / "figures" / "scaling_curves.csv").read_text()


def test_one_loss_changes_its_row_its_pair_and_the_headline(resolved: Study, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(resolved.folder, folder)
    runs = pd.read_csv(folder / "runs.csv", dtype=str, keep_default_na=False)
    at = int(runs.index[runs["variant"] == BLOCK][-1])
    runs.loc[at, "val_loss"] = repr(float(runs.loc[at, "val_loss"]) - 0.01)
    runs.to_csv(folder / "runs.csv", index=False)
    before, after = report_of(resolved, []), report_of(compare(folder), [])
    assert card_number(before, BLOCK) != card_number(after, BLOCK)
    assert card_number(before, FULL) == card_number(after, FULL)
    changed = set(section(before, "runs").split("\n")) ^ set(section(after, "runs").split("\n"))
    assert len(changed) == 2


def card_number(document: Document, arm: str) -> str:
    """What the card of ``arm`` shows first."""
    return next(card.shown.number for card in first(document, Cards).cards if card.arm == arm)


class Page(HTMLParser):
    """What a page would fetch, its text, ids and open elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "srcset", "data", "action", "poster") or (
                name in ("href", "xlink:href") and not (value or "").startswith(("#", "data:,"))
            ):
                self.fetched.append(f"{tag} {name}={value}")
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_is_self_contained(damaged: Study) -> None:
    text = (damaged.folder / "report.html").read_text()
    page = Page(text)
    assert page.fetched == []
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r"https?://[^\"' >]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|<iframe", text)


def test_page_and_markdown_say_the_same(damaged: Study) -> None:
    document = report_of(damaged, draw_all(damaged))
    page = "".join("".join(Page((damaged.folder / "report.html").read_text()).words).split())
    text = (damaged.folder / "report.md").read_text()
    assert to_markdown(document, "figures") == text
    read = "".join(re.sub(r"\\([\\`*_\[\]<>|])", r"\1", text).split())
    for line in document.lines():
        for part in line:
            words = "".join((part if isinstance(part, str) else part.text).split())
            assert words in page
            assert words in read


def test_all_but_the_table_can_be_made_again_to_the_byte(resolved: Study, tmp_path: Path) -> None:
    for name in ("plan.json", "runs.csv"):
        shutil.copy(resolved.folder / name, tmp_path / name)
    analyse(tmp_path)
    files = [path.relative_to(resolved.folder) for path in resolved.folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    for name in files:
        assert (tmp_path / name).read_bytes() == (resolved.folder / name).read_bytes(), name


def test_text_from_the_data_cannot_become_markup(tmp_path: Path) -> None:
    nasty = "<img src=x onerror=alert(1)>|`*"
    made = planted(arms=("additive", nasty), curves=False)
    plan = made.plan.model_copy(update={"description": "</script><b>"})
    write_study(tmp_path, PlantedStudy(plan, made.rows, []))
    document = report_of(compare(tmp_path), [])
    page = to_html(document, str)
    assert "<img" not in page
    assert page.count("</script>") == page.count("<script")
    assert html.escape("</script><b>") in page
    embedded = re.search(r'<script type="application/json" id="choices">(.*?)</script>', page)
    assert embedded is not None
    assert nasty in json.loads(embedded.group(1))


@pytest.mark.parametrize(
    ("value", "lo", "hi", "number", "interval"),
    [
        (1.24441, 1.2257, 1.2634, "1.244", "[1.226, 1.263]"),
        (1.24441, 1.1, 1.4, "1.24", "[1.10, 1.40]"),
        (1.24441, None, None, "1.24", "–"),
        (None, None, None, "–", "–"),
    ],
)
def test_a_multiplier_has_the_decimals_its_interval_allows(
    value: float | None, lo: float | None, hi: float | None, number: str, interval: str
) -> None:
    assert multiplier_text(value, lo, hi) == number
    assert interval_text(lo, hi) == interval


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234567.0, "1.235e6"), (12345.6, "12,346"), (0.05803, "0.05803"), (-2.5, "−2.5"), (1.7e-5, "1.700e−5"),
     (None, "–"), (float("nan"), "–"), (99999.7, "100,000")],
)  # fmt: skip
def test_digits(value: float | None, text: str) -> None:
    assert digits(value) == text


def test_small_numbers_in_words() -> None:
    assert percent(-0.2) == "−20.0 %"
    assert percent(0.0) == "+0.0 %"
    assert p_text(0.0004) == "< 0.001"
    assert p_text(0.031) == "0.031"
    assert p_text(0.58) == "0.58"


def test_lines_keep_their_parts() -> None:
    assert plain((Code("a"), ": ", Strong("b"), Link("c", "d"))) == "a: bc"
