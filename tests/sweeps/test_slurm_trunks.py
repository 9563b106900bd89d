"""The Slurm launcher and trunks: a branch's job waits for its trunk's, and none waits for ever."""

import json
import re
from pathlib import Path

import pytest

from experiments.run_folder import locked, prepare_folder
from experiments.settings import Settings
from sweeps.grid import ADDITIVE
from sweeps.launch.slurm import SlurmArrays
from sweeps.trunks import BranchedRung, branched_pairs
from tests.sweeps.fake_slurm import FakeSlurm
from tests.sweeps.test_slurm_launch import queue_lines, settings_in
from tests.sweeps.test_trunk_sweeps import SHAPE


@pytest.fixture
def fake(tmp_path, monkeypatch) -> FakeSlurm:
    slurm = FakeSlurm(tmp_path / "fake")
    monkeypatch.setenv("PATH", slurm.path)
    return slurm


def branched(*seeds: int):
    rung = BranchedRung(SHAPE, (5, 10, 20), seeds)
    return branched_pairs(rung, arms=(ADDITIVE,), dataset="synthetic", recipe="smoke_trunks")


def launched(settings: Settings, cells) -> tuple[list[str], list]:
    """What it said, and the cells that it refused."""
    told: list[str] = []
    refused = SlurmArrays()._submit(cells, settings, lambda event: told.append(event.message))
    return told, refused


def dependencies(fake: FakeSlurm) -> list[str]:
    return [
        next(iter(re.findall(r"^#SBATCH --dependency=(.*)$", script, flags=re.MULTILINE)), "")
        for script in fake.scripts()
    ]


def leave_checkpoint(settings: Settings, trunk, step: int) -> None:
    import hashlib

    folder = settings.runs / trunk.spec.spec_id / "branch_points"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"step-{step:08d}-{hashlib.sha256(b'state').hexdigest()[:16]}.ckpt").write_bytes(b"state")


def test_branches_wait_for_the_end_of_their_own_trunk_s_job(fake, tmp_path):
    settings, cells = settings_in(tmp_path), branched(0, 1)
    told, refused = launched(settings, cells)
    assert refused == []
    assert told == [
        "submitted 2 cells as job 1",
        "submitted 3 cells as job 2, after their trunk's job 1_0",
        "submitted 3 cells as job 3, after their trunk's job 1_1",
    ]
    assert dependencies(fake) == ["", "afterany:1_0", "afterany:1_1"]
    trunk, branch = cells[0], cells[1]
    written = json.loads((settings.runs / branch.spec.spec_id / "settings.json").read_text())
    assert written["parent"] == trunk.spec.spec_id
    written = json.loads((settings.runs / trunk.spec.spec_id / "settings.json").read_text())
    assert [point["step"] for point in written["branches"]] == [cell.first_step for cell in cells[1:4]]


def test_w07_branches_of_a_trunk_that_is_queued_already_wait_for_that_job(fake, tmp_path):
    settings, cells = settings_in(tmp_path), branched(0)
    launched(settings, cells[:1])
    fake.set_queue(*queue_lines(settings, "RUNNING"))
    told, _ = launched(settings, cells)
    assert told[1:] == ["submitted 3 cells as job 2, after their trunk's job 1_0"]
    fake.set_queue(*queue_lines(settings, "PENDING", "Dependency"))
    assert launched(settings, cells)[0] == ["4 cells are queued or running already: not submitted again"]


@pytest.mark.usefixtures("fake")
def test_branches_of_a_trunk_that_has_ended_start_at_once_or_are_refused(fake, tmp_path):
    settings, (trunk, *branches) = settings_in(tmp_path), branched(0)
    leave_checkpoint(settings, trunk, branches[0].first_step)
    told, refused = launched(settings, branches)
    assert refused == branches[1:]
    assert told == [
        f"trunk {trunk.spec.spec_id} failed: it left no checkpoint of step {cell.first_step}"
        for cell in branches[1:]
    ] + ["submitted 1 cells as job 1"]
    assert dependencies(fake) == [""]
    assert not (settings.runs / branches[1].spec.spec_id / "spec.json").exists()


@pytest.mark.usefixtures("fake")
def test_a_trunk_at_work_outside_the_queue_is_not_called_failed(tmp_path):
    settings, (trunk, *branches) = settings_in(tmp_path), branched(0)
    with locked(prepare_folder(trunk.spec, settings)):
        told, refused = launched(settings, [trunk, *branches])
    assert refused == branches
    assert (
        told[1] == f"trunk {trunk.spec.spec_id} is at work outside the queue; start again when it has ended"
    )


def test_a_site_s_own_dependency_is_refused(tmp_path):
    from attnres.errors import UserError
    from sweeps.site import read_site

    path: Path = tmp_path / "site.toml"
    path.write_text('[sbatch]\ndependency = "singleton"\n')
    with pytest.raises(UserError, match="sbatch option dependency is set by the launcher"):
        read_site(path)
