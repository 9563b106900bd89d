"""dynamics/ of a study: copied from the run directories, byte for byte, and nothing else in it."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis.commands import main
from analysis.dynamics import copy_dynamics, every_depth_run
from analysis.plan_file import read_plan
from analysis.study import Study
from attnres.errors import UserError
from tests.analysis.depth_planted import write_dynamics
from tests.analysis.planted import planted_runs


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A study with run directories, half of which have dynamics."""
    study, runs = tmp_path / "study", tmp_path / "runs"
    planted_runs(study, runs, sizes=4, seeds=1)
    for cell in read_plan(study).cells[::2]:
        write_dynamics(tmp_path, cell)
        (tmp_path / "dynamics" / f"{cell.spec_id}.parquet").rename(runs / cell.spec_id / "dynamics.parquet")
    return study, runs


def test_table_copies_the_dynamics_of_the_runs_that_have_them(folders: tuple[Path, Path]) -> None:
    study, runs = folders
    (study / "dynamics").mkdir()
    (study / "dynamics" / "gone.parquet").write_bytes(b"of a run that is no more")
    (study / "dynamics" / ".half.tmp").write_bytes(b"")
    for _ in range(2):
        assert main(["table", "--study", str(study), "--runs", str(runs)]) == 0
        found = {path.stem: path.read_bytes() for path in (study / "dynamics").iterdir()}
        assert found == {
            cell.spec_id: (runs / cell.spec_id / "dynamics.parquet").read_bytes()
            for cell in read_plan(study).cells[::2]
        }
    assert len(every_depth_run(Study(study))) == len(found)


def test_a_study_without_dynamics_has_no_folder(folders: tuple[Path, Path]) -> None:
    study, runs = folders
    for path in runs.glob("*/dynamics.parquet"):
        path.unlink()
    assert main(["table", "--study", str(study), "--runs", str(runs)]) == 0
    assert not (study / "dynamics").exists()


def test_a_damaged_file_is_named(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    study, runs = folders
    cell = read_plan(study).cells[0]
    path = runs / cell.spec_id / "dynamics.parquet"
    path.write_bytes(path.read_bytes()[:200])
    assert main(["table", "--study", str(study), "--runs", str(runs)]) == 2
    assert f"{cell.spec_id}/dynamics.parquet: damaged" in capsys.readouterr().err
    pd.DataFrame({"step": [1]}).to_parquet(path)
    with pytest.raises(UserError, match=r"no column site, kind, source, quantity, value"):
        copy_dynamics(study, runs, [cell.spec_id])
    shutil.rmtree(runs / cell.spec_id)
    copy_dynamics(study, runs, [cell.spec_id])
