"""Other people's runs through the same analysis: a CSV, an MLflow experiment."""

import csv

import pytest

from analysis.commands import main
from analysis.study import Study
from tests.analysis.planted import planted
from tests.analysis.studies import ask

ARMS = ("base", "new")


def foreign_rows(**options) -> list[dict[str, object]]:
    made = planted(arms=ARMS, curves=False, noise=1e-4, lack_of_fit=0.0, **options)
    return [
        {"arm": r["variant"], "model": f"w{r['width']}", "D": r["tokens"], "loss": r["val_loss"], "C": r["compute"], "s": r["seed"]}
        for r in made.rows
    ]  # fmt: skip


def write_rows(path, rows) -> None:
    with open(path, "w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


MAPS = [
    f"--map={pair}"
    for pair in ("variant=arm", "size=model", "tokens=D", "val_loss=loss", "compute=C", "seed=s")
]


def run_import(folder, path, *more: str) -> int:
    return main(["import", "--study", str(folder), "--csv", str(path), "--baseline", "base", *MAPS, *more])


def test_a_foreign_csv_gives_its_multiplier(tmp_path, capsys):
    write_rows(tmp_path / "theirs.csv", foreign_rows())
    assert run_import(tmp_path / "study", tmp_path / "theirs.csv") == 0
    assert "14 runs" in capsys.readouterr().out
    found = ask(Study(tmp_path / "study"), variant="new")
    assert found.estimate.compute_multiplier == pytest.approx(1.25, abs=0.01)
    assert found.arms.num_pairs == 7


def test_the_whole_report_runs_on_imported_runs(tmp_path, capsys):
    write_rows(tmp_path / "theirs.csv", foreign_rows())
    assert run_import(tmp_path / "study", tmp_path / "theirs.csv") == 0
    assert main(["report", "--study", str(tmp_path / "study")]) == 0
    assert (tmp_path / "study" / "report.html").exists()
    assert "new" in capsys.readouterr().out


def test_an_axis_that_needs_missing_columns_is_refused(tmp_path):
    write_rows(tmp_path / "theirs.csv", foreign_rows())
    run_import(tmp_path / "study", tmp_path / "theirs.csv")
    status = ask(Study(tmp_path / "study"), variant="new", axis="6nd").row()["status"]
    assert status == "refused: compute unknown on this axis: 6nd needs columns that are empty in some runs"


def test_diverged_and_repeated_runs_stay_with_their_reason(tmp_path):
    rows = foreign_rows()
    rows[3]["loss"] = "nan"
    rows.append(dict(rows[0]))
    write_rows(tmp_path / "theirs.csv", rows)
    assert run_import(tmp_path / "study", tmp_path / "theirs.csv") == 0
    table = Study(tmp_path / "study").runs
    assert len(table) == 15
    assert table["exclusion_reason"].value_counts().to_dict() == {"none": 13, "diverged": 1, "duplicate": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": "-1"}, "line 2: val_loss is -1.0; a loss is 0.0001 to 1000 nats a token"),
        ({"loss": "low"}, "line 2: val_loss is 'low', not a float"),
        ({"D": "1.5"}, "line 2: tokens is '1.5', not a int"),
        ({"D": "0"}, "line 2: tokens is '0'; a positive number is needed"),
        ({"C": "inf"}, "line 2: compute is 'inf'; a positive number is needed"),
        ({"arm": ""}, "line 2: no variant"),
        ({"model": ""}, "line 2: no size"),
    ],
)
def test_bad_cells_are_named(tmp_path, capsys, change, words):
    rows = foreign_rows()
    rows[0] |= change
    write_rows(tmp_path / "theirs.csv", rows)
    assert run_import(tmp_path / "study", tmp_path / "theirs.csv") == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "study").exists()


def test_missing_columns_and_wrong_maps_are_named(tmp_path, capsys):
    path = tmp_path / "theirs.csv"
    write_rows(path, foreign_rows())
    begin = ["import", "--study", str(tmp_path / "s"), "--csv", str(path), "--baseline", "base"]
    for more, words in (
        ([], "no column variant, size, tokens, val_loss, compute"),
        (["--map", "variant=colour"], "has no column colour; it has arm, model"),
        (["--map", "flavour=arm"], "--map flavour: no such column"),
        (["--map", "variant"], "--map variant: must be OURS=THEIRS"),
    ):
        assert main([*begin, *more]) == 2
        assert words in capsys.readouterr().err
    assert main([*begin[:-1], "nobody", *MAPS]) == 2
    assert "no run of the baseline 'nobody'; the arms are base, new" in capsys.readouterr().err


def test_an_mlflow_experiment_is_read_to_its_last_page(tmp_path, capsys, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'store.db'}"
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("theirs", artifact_location=str(tmp_path / "artifacts"))
    rows = foreign_rows(seeds=1)
    for row in rows:
        run = client.create_run(experiment)
        for key in ("model", "D", "s", "C"):
            client.log_param(run.info.run_id, key, row[key])
        client.set_tag(run.info.run_id, "arm", row["arm"])
        client.log_metric(run.info.run_id, "eval/loss", row["loss"])
        client.set_terminated(run.info.run_id)
    pages = []
    original = mlflow.MlflowClient.search_runs

    def three_a_page(self, ids, **options):
        page = original(self, ids, **options | {"max_results": 3})
        pages.append(len(page))
        return page

    monkeypatch.setattr(mlflow.MlflowClient, "search_runs", three_a_page)
    sources = ("variant=tags.arm", "size=params.model", "tokens=params.D", "compute=params.C", "val_loss=metrics.eval/loss", "seed=params.s", "status=attributes.status")  # fmt: skip
    begin = ["import", "--study", str(tmp_path / "s"), "--mlflow", uri, "--baseline", "base"]
    maps = [f"--map={source}" for source in sources]
    assert main([*begin, "--experiment", "theirs", *maps]) == 0
    assert pages == [3, 3, 3, 1]
    study = Study(tmp_path / "s")
    assert (study.runs["run_id"] != "").all() and len(study.runs) == 10
    assert ask(study, variant="new").estimate.compute_multiplier == pytest.approx(1.25, abs=0.01)
    for more, words in (
        (["--experiment", "nothing", *maps], "no experiment 'nothing'"),
        (maps, "--mlflow needs --experiment"),
        (["--experiment", "theirs"], "--map is needed for variant, size"),
        (["--experiment", "theirs", *maps, "--map=lr=lr"], "must be params.X"),
    ):
        assert main([*begin, *more]) == 2
        assert words in capsys.readouterr().err


def test_a_store_that_is_not_there_is_named_and_not_made(tmp_path, capsys):
    sources = ("variant=tags.arm", "size=params.model", "tokens=params.D", "compute=params.C", "val_loss=metrics.l")  # fmt: skip
    store = tmp_path / "mistyped.db"
    begin = ["import", "--study", str(tmp_path / "s"), "--mlflow", f"sqlite:///{store}", "--baseline", "base"]
    assert main([*begin, "--experiment", "theirs", *(f"--map={source}" for source in sources)]) == 2
    assert f"there is no file {store}" in capsys.readouterr().err
    assert not store.exists()


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("budget", "-1", "line 2: budget: Input should be greater than 0"),
        ("budget", "0", "line 2: budget: Input should be greater than 0"),
        ("lr", "0", "line 2: lr: Input should be greater than 0"),
        ("params", "-5", "line 2: params: Input should be greater than 0"),
        ("params_decoder", "-5", "line 2: the run has params_decoder -5, which cannot be negative"),
        ("batch_tokens", "-1", "line 2: the run has batch_tokens -1, which cannot be negative"),
    ],
)
def test_numbers_that_cannot_be_are_named_when_they_come_in(tmp_path, capsys, column, value, words):
    rows = [row | {column: ""} for row in foreign_rows()]
    rows[0][column] = value
    write_rows(tmp_path / "theirs.csv", rows)
    assert run_import(tmp_path / "study", tmp_path / "theirs.csv") == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "study").exists()


def test_compute_that_contradicts_its_parts_is_named(tmp_path, capsys):
    rows = [
        row | {f"flops_per_token_{part}": row["C"] / row["D"] / 4 for part in ("matmul", "attention", "head", "stream")}
        for row in foreign_rows()
    ]  # fmt: skip
    write_rows(tmp_path / "theirs.csv", rows)
    assert run_import(tmp_path / "study", tmp_path / "theirs.csv") == 0
    rows[0]["C"] = 2 * rows[0]["C"]
    write_rows(tmp_path / "theirs.csv", rows)
    assert run_import(tmp_path / "again", tmp_path / "theirs.csv") == 2
    assert "line 2: the run has compute" in capsys.readouterr().err
