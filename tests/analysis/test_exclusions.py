"""Runs that a person leaves out: explicit, with a reason, counted, and shown with them put back."""

import json

import pytest

from analysis.commands import main
from analysis.comparison import Comparison
from analysis.exclusions import EXCLUSIONS_FILE
from analysis.study import Study
from attnres.errors import UserError
from tests.analysis.studies import BASELINE, VARIANT, ask, made_study

BAD = 0.1
"""Nats added to one run: what a wrong flag or a damaged file does."""


def spoilt(folder, **options) -> tuple[Study, str]:
    """A study in which the largest run of the variant is `BAD` nats too high, and that run."""
    study = made_study(folder, sizes=6, noise=5e-4, lack_of_fit=5e-4, **options)
    run = study.cells[study.cells["variant"] == VARIANT].sort_values("budget").iloc[-1]
    path = folder / "runs.csv"
    loss = float(run["val_loss"])
    path.write_text(path.read_text().replace(f",{loss!r},", f",{loss + BAD!r},", 1))
    return Study(folder), str(run["spec_id"])


def exclude(folder, *lines: str) -> None:
    (folder / EXCLUSIONS_FILE).write_text("spec_id,reason\n" + "".join(line + "\n" for line in lines))


def test_nothing_is_called_an_outlier_by_itself(tmp_path):
    study, run = spoilt(tmp_path)
    assert set(study.runs["exclusion_reason"]) == {"none"}
    assert run in ask(study).arms.spec_ids


def test_a_run_left_out_by_hand_leaves_its_pair_and_is_told(tmp_path):
    with_it, run = spoilt(tmp_path)
    before = ask(with_it)
    exclude(tmp_path, f'{run},"wrong data path, seen in its log"')
    study = Study(tmp_path)
    row = study.runs.set_index("spec_id").loc[run]
    assert bool(row["excluded"]) and row["exclusion_reason"] == "outlier"
    after = ask(study)
    assert run not in after.arms.spec_ids and after.arms.num_pairs == before.arms.num_pairs - 1
    assert after.estimate.compute_multiplier == pytest.approx(1.25, abs=0.02)
    assert abs(before.estimate.compute_multiplier - 1.25) > 0.05
    assert any("lacks d7w224 seed 0 (outlier)" in note for note in after.arms.notes)


def test_the_report_counts_it_quotes_the_reason_and_puts_it_back(tmp_path):
    with_it, run = spoilt(tmp_path)
    before = ask(with_it).estimate.compute_multiplier
    exclude(tmp_path, f'{run},"wrong data path, seen in its log"')
    assert main(["report", "--study", str(tmp_path)]) == 0
    study = Study(tmp_path)
    left = [r for r in study.read_fits("counts")["excluded"] if r["spec_id"] == run]
    assert [(r["reason"], r["why"]) for r in left] == [("outlier", "wrong data path, seen in its log")]
    items = {row["item"]: row["value"] for row in study.read_fits("checklist")}
    assert items["runs left out by hand"] == {run: "wrong data path, seen in its log"}
    assert run not in items["points used"][VARIANT]
    back = [row for row in study.read_fits("sensitivity") if row["kind"] == "put_back"]
    assert [row["compute_multiplier"] for row in back] == [pytest.approx(before, rel=1e-12)]
    text = (tmp_path / "report.md").read_text()
    assert "1 runs are left out by hand (exclusions.csv)" in text
    assert "outlier: wrong data path, seen in its log" in text


def test_without_the_file_the_checklist_says_none(tmp_path):
    study = made_study(tmp_path)
    assert main(["fits", "--study", str(tmp_path)]) == 0
    items = {row["item"]: row["value"] for row in json.loads((tmp_path / "fits/checklist.json").read_text())}
    assert items["runs left out by hand"] == "none"
    assert study.outliers == {}


def test_a_run_that_a_rule_left_out_keeps_its_reason(tmp_path):
    made_study(tmp_path)
    path = tmp_path / "runs.csv"
    run = Study(tmp_path).runs.iloc[0]["spec_id"]
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace(",false,none", ",true,duplicate")
    path.write_text("".join(lines))
    exclude(tmp_path, f"{run},seen twice")
    assert Study(tmp_path).runs.iloc[0]["exclusion_reason"] == "duplicate"


def test_leaving_out_too_many_is_refused_like_any_small_study(tmp_path):
    study = made_study(tmp_path, seeds=1)
    runs = study.cells[study.cells["variant"] == BASELINE]["spec_id"][:2]
    exclude(tmp_path, *(f"{run},no reason to like it" for run in runs))
    assert "too few sizes" in ask(Study(tmp_path)).row()["status"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["nobody,why"], "run 'nobody' is not in the plan"),
        (["{run},why", "{run},again"], "stands twice"),
        (["{run},"], "has no reason"),
        (['{run},"  "'], "has no reason"),
        (["{run}"], "1 cells for 2 columns"),
        ([",why"], "run '' is not in the plan"),
    ],
)
def test_wrong_files_are_named(tmp_path, capsys, lines, words):
    run = made_study(tmp_path).runs.iloc[0]["spec_id"]
    exclude(tmp_path, *(line.format(run=run) for line in lines))
    for command in ("fits", "multipliers"):
        assert main([command, "--study", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert words in error and EXCLUSIONS_FILE in error and error.count("\n") == 1


def test_a_table_that_calls_a_run_an_outlier_without_a_reason_is_refused(tmp_path):
    made_study(tmp_path)
    path = tmp_path / "runs.csv"
    path.write_text(path.read_text().replace(",false,none", ",true,outlier", 1))
    with pytest.raises(UserError, match=r"is called an outlier and exclusions\.csv does not say why"):
        Comparison(Study(tmp_path)).study.cells  # noqa: B018
