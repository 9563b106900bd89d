"""Checkpoints of finished runs dropped by the stated rule; a study that opens elsewhere (cases M05, M06)."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import torch

from analysis.__main__ import main as analysis
from experiments.checkpoint import save_checkpoint
from experiments.record import RunStatus
from experiments.run_folder import locked
from experiments.tracking import store_uri, sync
from sweeps.__main__ import main
from sweeps.grid import load_grid
from tests.experiments.mirrored import all_runs, finish_dir, make_dir

SPECS = [cell.spec for cell in load_grid("smoke").cells]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path


def with_checkpoints(run_dir: Path) -> Path:
    for step in (10, 20):
        save_checkpoint(run_dir / "checkpoints", step, {"weights": torch.ones(1000)})
    return run_dir


def checkpoints(run_dir: Path) -> int:
    return len(list((run_dir / "checkpoints").glob("*.ckpt")))


def test_prune_drops_checkpoints_of_done_cells_alone(here, capsys) -> None:
    states = (RunStatus.FINISHED, RunStatus.DIVERGED, RunStatus.FAILED, RunStatus.INTERRUPTED)
    ended = {s: with_checkpoints(finish_dir(SPECS[i], here / "runs", s)) for i, s in enumerate(states)}
    started = with_checkpoints(make_dir(SPECS[4], here / "runs"))
    running = with_checkpoints(finish_dir(SPECS[5], here / "runs"))
    elsewhere = with_checkpoints(make_dir(SPECS[6].model_copy(update={"seed": 9}), here / "runs"))
    damaged = with_checkpoints(make_dir(SPECS[7], here / "runs"))
    (damaged / "record.json").write_text("{")
    kept = [ended[RunStatus.FAILED], ended[RunStatus.INTERRUPTED], started, running, elsewhere, damaged]
    dropped = [ended[RunStatus.FINISHED], ended[RunStatus.DIVERGED]]
    with locked(running):
        assert main(["prune", "smoke", "--dry-run"]) == 0
        assert [checkpoints(folder) for folder in (*dropped, *kept)] == [2] * 8
        assert "would drop the checkpoints of 2 finished cells" in capsys.readouterr().out
        assert main(["prune", "smoke"]) == 0
    assert [checkpoints(folder) for folder in dropped] == [0, 0]
    assert [checkpoints(folder) for folder in kept] == [2] * 6
    assert all(
        (folder / "record.json").exists() and (folder / "metrics.jsonl").exists() for folder in dropped
    )
    assert main(["prune", "smoke"]) == 0
    assert "dropped the checkpoints of 1 finished cells" in capsys.readouterr().out  # the one that ran


def test_m06_an_export_opens_elsewhere_with_the_same_tables(here, tmp_path_factory, capsys) -> None:
    for spec in SPECS[:-1]:
        with_checkpoints(finish_dir(spec, here / "runs"))
    (here / "runs" / SPECS[0].spec_id / ".record.json.0a.tmp").write_text("left by a kill")
    assert main(["plan", "smoke"]) == 0
    assert analysis(["table", "--study", "results/smoke"]) == 0
    with locked(here / "runs" / SPECS[1].spec_id):
        assert main(["export", "smoke", "--to", "running.tar.gz"]) == 0
        assert SPECS[1].spec_id in capsys.readouterr().err
    assert main(["export", "smoke", "--to", "study.tar.gz"]) == 0
    assert main(["export", "smoke"]) == 0
    assert (here / "smoke.tar.gz").read_bytes() == (here / "study.tar.gz").read_bytes()
    there = tmp_path_factory.mktemp("elsewhere")
    with tarfile.open(here / "study.tar.gz") as archive:
        names = archive.getnames()
        archive.extractall(there, filter="data")
    assert not [name for name in names if "checkpoints" in name or name.endswith(("lock", ".tmp"))]
    tables = {name: (here / "results/smoke" / name).read_bytes() for name in ("runs.csv", "plan.json")}
    shutil.rmtree(here / "runs")
    opened = there / "smoke"
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=opened, check=True)
    assert analysis(["table", "--study", f"{opened}/results/smoke", "--runs", f"{opened}/runs"]) == 0
    assert {name: (opened / "results/smoke" / name).read_bytes() for name in tables} == tables
    folders = sorted((opened / "runs").iterdir())
    assert sync(folders, store_uri(opened / "runs")) == len(SPECS) - 1
    assert len(all_runs(opened / "runs")) == len(SPECS) - 1


@pytest.mark.usefixtures("here")
def test_an_export_without_results_or_room_is_refused_in_one_line(capsys) -> None:
    assert main(["export", "smoke"]) == 2
    assert "results/smoke: no such folder" in capsys.readouterr().err
    assert main(["plan", "smoke"]) == 0
    assert main(["export", "smoke", "--to", "no/such/folder.tar.gz"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no/such/folder.tar.gz: cannot be") and error.count("\n") == 1


def test_an_archive_in_the_study_does_not_hold_the_one_before_it(here) -> None:
    assert main(["plan", "smoke"]) == 0
    target = here / "results/smoke/all.tar.gz"
    assert main(["export", "smoke", "--to", "results/smoke/all.tar.gz"]) == 0
    first = target.read_bytes()
    assert main(["export", "smoke", "--to", "results/smoke/all.tar.gz"]) == 0
    assert target.read_bytes() == first
