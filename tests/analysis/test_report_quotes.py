"""Numbers in documents: filled from results, found when stale, refused when they name nothing."""

from pathlib import Path

import pytest

from analysis.commands import main
from analysis.quotes import fill_quotes
from attnres.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


def test_a_mark_is_filled_from_the_committed_results(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Block: <!--= paper block_attnres 6nd -->?<!--/-->, claimed <!--= paper claim --><!--/-->.\n"
    )
    stale = fill_quotes([page], RESULTS)
    assert len(stale) == 2
    assert page.read_text() == (
        "Block: <!--= paper block_attnres 6nd -->1.239 [1.189, 1.291]<!--/-->, "
        "claimed <!--= paper claim -->1.25<!--/-->.\n"
    )
    assert fill_quotes([page], RESULTS) == []


def test_checking_finds_a_stale_number_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!--= paper full_attnres 6nd -->1.4<!--/-->")
    assert main(["quotes", "--check", "--results", str(RESULTS), str(page)]) == 1
    assert "full_attnres 6nd is 1.306 [1.240, 1.377], not 1.4" in capsys.readouterr().out
    assert page.read_text() == "<!--= paper full_attnres 6nd -->1.4<!--/-->"
    assert main(["quotes", "--results", str(RESULTS), str(page)]) == 0
    assert main(["quotes", "--check", "--results", str(RESULTS), str(page)]) == 0


@pytest.mark.parametrize(
    "mark", ["paper nobody 6nd", "paper block_attnres nowhere", "nothing arm exact", "paper"]
)
def test_a_mark_that_names_no_number_is_refused(tmp_path: Path, mark: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"<!--= {mark} -->1<!--/-->")
    with pytest.raises(UserError):
        fill_quotes([page], RESULTS)


def test_the_documents_of_the_project_are_not_stale() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert fill_quotes([path for path in documents if path.exists()], RESULTS, check=True) == []
