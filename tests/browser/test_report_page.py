"""The report in a headless Chromium: layouts, switches, keyboard, print, accessibility, no request elsewhere."""

import re
import shutil
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from analysis.commands import main
from analysis.study import Study
from tests.analysis.planted import ARMS, planted_study

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
if find_spec("playwright") is None:
    pytest.skip("playwright is not installed: pip install '.[browser]'", allow_module_level=True)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine: apt-get install chromium", allow_module_level=True)

from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A report with a resolved arm, one that is not, and one with a long label."""
    folder = tmp_path_factory.mktemp("study")
    arms = (*ARMS, "block_attnres[num_blocks=16,boundaries=12345678]")
    planted_study(folder, compute_multiplier=(1.25, 1.0, 0.9), overhead=0.03, arms=arms, noise=0.004)
    assert main(["report", "--study", str(folder)]) == 0
    return Study(folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield one
        one.close()


class Watched:
    """A page, and everything that went wrong on it."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("console", lambda message: self.faults.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("request", self._request)
        page.goto(path.as_uri())

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            self.faults.append(f"request: {request.url}")

    def evaluate(self, script: str) -> Any:
        """What a script returns."""
        return self.page.evaluate(script)


def opened(browser: Browser, study: Study, width: int = 1280, **options: Any) -> Watched:
    """The report in a window of its own."""
    page = browser.new_page(viewport={"width": width, "height": 844}, **options)
    return Watched(page, study.folder / "report.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_layouts_hold_without_errors_or_requests(
    browser: Browser, study: Study, width: int, scheme: Any
) -> None:
    watched = opened(browser, study, width, color_scheme=scheme)
    assert watched.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.evaluate("[...document.querySelectorAll('figure svg')].length") >= 4
    small = watched.evaluate(
        "[...document.querySelectorAll('p, li, td, select, label')]"
        ".filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length"
    )
    assert small == 0
    background = watched.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")
    assert watched.faults == []
    watched.page.close()


def test_the_first_screen_holds_the_answer(browser: Browser, study: Study) -> None:
    watched = opened(browser, study)
    for place in (".card:last-child .verdict", ".switches", ".answers h2"):
        assert watched.evaluate(f"document.querySelector('{place}').getBoundingClientRect().bottom") < 844
    watched.page.close()


def shown(watched: Watched) -> dict[str, str]:
    """Arm -> number on its card."""
    script = (
        "Object.fromEntries([...document.querySelectorAll('.card')]"
        ".map(c => [c.dataset.arm, c.querySelector('[data-part=number]').textContent]))"
    )
    found: dict[str, str] = watched.evaluate(script)
    return found


def test_switches_show_the_rows_of_the_table(browser: Browser, study: Study) -> None:
    watched = opened(browser, study)
    table = study.multipliers[study.multipliers["variant"].isin(study.plan.arms[1:])]
    checked = 0
    for (axis, estimator, rate), rows in table.groupby(["compute_axis", "estimator", "rate"]):
        for name, value in (("axis", axis), ("estimator", estimator), ("rate", rate)):
            watched.page.select_option(f"[data-switch={name}]", value)
        cards = shown(watched)
        for arm, own in rows.groupby("variant"):
            known = own.dropna(subset=["compute_multiplier"])
            if len(known) == 0:
                assert cards[arm] == "no number"
                continue
            value = known.sort_values("at", na_position="first")["compute_multiplier"].iloc[-1]
            text = cards[arm].removesuffix("×")
            assert float(text) == pytest.approx(value, abs=0.51 * 10 ** -len(text.partition(".")[2]))
            checked += 1
    assert checked > 20
    assert watched.faults == []
    watched.page.close()


def test_switches_can_be_reached_and_turned_with_the_keyboard(browser: Browser, study: Study) -> None:
    watched = opened(browser, study)
    before = shown(watched)
    for _ in range(40):
        watched.page.keyboard.press("Tab")
        if watched.evaluate("document.activeElement.dataset.switch") == "axis":
            break
    assert watched.evaluate("document.activeElement.dataset.switch") == "axis"
    watched.page.keyboard.press("ArrowDown")
    after = shown(watched)
    assert before != after
    outline = watched.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    watched.page.close()


def test_a_combination_that_was_not_computed_says_so(browser: Browser, study: Study) -> None:
    watched = opened(browser, study)
    watched.page.select_option("[data-switch=axis]", "6nd")
    watched.page.select_option("[data-switch=irreducible]", "fixed at 0")
    assert set(shown(watched).values()) == {"–"}
    assert "not computed" in watched.page.inner_text(".card .verdict")
    watched.page.close()


def test_a_point_says_which_run_it_is_and_leads_to_its_row(browser: Browser, study: Study) -> None:
    watched = opened(browser, study)
    spec_id = study.plan.cells[-1].spec_id
    point = watched.page.locator(f"#figure-scaling_curves [data-run='{spec_id}']").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    hint = watched.page.inner_text(".hint")
    assert spec_id in hint
    assert study.plan.cells[-1].size in hint
    point.click(force=True)
    assert watched.evaluate("location.hash") == f"#run-{spec_id}"
    assert watched.evaluate(f"document.getElementById('run-{spec_id}').matches(':target')")
    assert watched.faults == []
    watched.page.close()


def test_print_drops_the_controls_and_keeps_the_tables_on_paper(browser: Browser, study: Study) -> None:
    watched = opened(browser, study, 720, color_scheme="dark")
    watched.page.emulate_media(media="print", color_scheme="dark")
    assert watched.evaluate("getComputedStyle(document.querySelector('.switches')).display") == "none"
    assert watched.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert watched.evaluate("document.documentElement.scrollWidth") <= 720
    cut = watched.evaluate(
        "[...document.querySelectorAll('table, figure')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.textContent.slice(0, 60))"
    )
    assert cut == []
    watched.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser: Browser, study: Study, scheme: Any) -> None:
    if find_spec("axe_playwright_python") is None:
        pytest.skip("axe-playwright-python is not installed: pip install '.[browser]'")
    watched = opened(browser, study, color_scheme=scheme)
    watched.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    result = watched.evaluate("axe.run(document, {resultTypes: ['violations']})")
    faults = [
        f"{fault['id']}: {fault['help']}: {fault['nodes'][0]['html'][:120]}"
        for fault in result["violations"]
        if fault["impact"] in ("serious", "critical")
    ]
    assert faults == []
    assert len(result["passes"]) > 10
    watched.page.close()
