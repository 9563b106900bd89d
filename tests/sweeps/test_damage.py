"""Sweeps over damaged folders and full disks: the rest goes on, and nothing damaged is trained over."""

import errno
import os
from pathlib import Path

import pytest

from attnres import files
from attnres.json_files import reason
from experiments.attempts import Attempts
from experiments.run_folder import is_running, locked
from sweeps import commands, show
from sweeps.__main__ import main
from sweeps.grid import load_grid
from sweeps.launch import base, local
from sweeps.launch.base import Ended, Stopping, Warned
from sweeps.launch.retry import Retries
from sweeps.plan import CellState, make_plan

SMOKE = [cell.spec.spec_id for cell in load_grid("smoke").cells]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Runs, results and data of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def launched(monkeypatch) -> list[str]:
    """Runs that a sweep would have started."""
    started: list[str] = []

    class Listing(base.Launcher):
        def launch(self, cells, settings, *, jobs, retries, fail_fast, show):  # noqa: ARG002
            started.extend(cell.spec.spec_id for cell in cells)
            return True

    monkeypatch.setitem(base.LAUNCHERS._entries, "listing", Listing)
    monkeypatch.setattr(commands, "_prepare", lambda *_: None)
    monkeypatch.setattr(base, "measure_missing", lambda *_: started.append("throughput"))
    return started


RUN = ("run", "smoke", "--launcher", "listing", "--no-tracking")


def damage(runs: Path, name: str, content: bytes | None) -> Path:
    path = runs / SMOKE[0] / name
    path.parent.mkdir(parents=True)
    path.mkdir() if content is None else path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [("record.json", b'{"spec_id": "'), ("record.json", b"\xff\xfe"), ("record.json", b""), ("record.json", b"{}"),
     ("record.json", None), ("lock", None)],
)  # fmt: skip
def test_a_damaged_file_is_listed_and_neither_trained_over_nor_counted(here, launched, capsys, name, content):
    path = damage(here / "runs", name, content)
    assert main(["status", "smoke"]) == 1
    told = capsys.readouterr().out
    assert f"{len(SMOKE)} cells: {len(SMOKE) - 1} missing, 1 damaged" in told
    assert f"  damaged: additive d2w12 seed 0 lr 0.01 (runs/{SMOKE[0]}/{name}: " in told
    assert main(["plan", "smoke"]) == 0
    assert f"{SMOKE[0]}/{name}: " in capsys.readouterr().err
    assert main([*RUN]) == 1
    assert f"{SMOKE[0]}/{name}: " in capsys.readouterr().err
    assert launched == SMOKE[1:], "all others are trained, and no throughput is measured before all are done"
    assert path.is_dir() if content is None else path.read_bytes() == content


@pytest.mark.parametrize("command", [("status", "smoke"), ("plan", "smoke"), ("sync", "smoke"), RUN])
def test_runs_that_are_a_file_are_refused_and_nothing_is_written(here, launched, capsys, command):
    (here / "runs").write_text("mine")
    assert main([*command]) == 2
    assert capsys.readouterr().err == "error: runs: is not a folder; choose another --runs\n"
    assert [path.name for path in here.iterdir()] == ["runs"] and not launched


@pytest.mark.parametrize("option", ["--results", "--runs"])
def test_folders_that_cannot_be_written_are_refused_before_anything_is(
    here, launched, capsys, monkeypatch, option
):
    """Tests may run as root, for whom every folder is writable: what the system answers is made up."""
    locked_up = here / "locked"
    locked_up.mkdir()
    monkeypatch.setattr(commands.os, "access", lambda path, _: Path(path) != locked_up)
    assert main([*RUN, option, str(locked_up / "deep")]) == 2
    line = capsys.readouterr().err
    assert (
        f"{locked_up} is read-only" in line and f"choose another {option}" in line and line.count("\n") == 1
    )
    assert list(here.rglob("*")) == [locked_up] and not launched


def test_a_full_disk_is_one_line_that_names_the_plan(here, launched, capsys, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    for command in (("plan", "smoke"), RUN):
        assert main([*command]) == 2
        line = capsys.readouterr().err
        assert line.startswith("error: results/smoke/plan.json: No space left on device; ")
        assert line.count("\n") == 1
    assert not launched and not list(here.rglob("*.tmp"))


@pytest.mark.parametrize(
    "arguments",
    [("plan",), ("plna", "smoke"), ("run", "smoke", "--jobs", "two"), ("run", "smoke", "--threads", "0"), ("run", "smoke", "--retries", "-1"),
     ("run", "smoke", "--jobs", "-1"), ("run", "smoke", "--device", "tpu"), ("sync", "smoke", "--runs", "nowhere")],
)  # fmt: skip
def test_wrong_usage_is_one_line(here, capsys, arguments):
    try:
        code = main([*arguments])
    except SystemExit as ended:
        code = ended.code
    line = capsys.readouterr().err
    assert code == 2 and line.startswith("error: ") and line.count("\n") == 1
    assert not list(here.iterdir())


def test_a_device_that_is_not_here_is_refused_before_anything_is_written(here, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["run", "smoke", "--device", "cuda", "--no-tracking"]) == 2
    assert capsys.readouterr().err.startswith("error: device cuda: no CUDA device is visible here")
    assert not list(here.iterdir())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("whole", [True, False])
def test_no_throughput_is_measured_while_cells_are_missing_or_after_an_interruption(
    launched, monkeypatch, whole
):
    """The launcher ends without having trained anything: with nothing to say, or interrupted."""
    monkeypatch.setattr(base.LAUNCHERS.get("listing"), "launch", lambda *_, **__: whole)
    assert main([*RUN]) == (1 if whole else 130)
    assert launched == []


# --- the pool ---------------------------------------------------------------------------------------


class FakeProcess:
    """A cell that works until it is told to end."""

    def __init__(self) -> None:
        self.alive, self.exitcode = True, None

    def is_alive(self) -> bool:
        return self.alive

    def terminate(self) -> None:
        self.alive, self.exitcode = False, 130

    def join(self, timeout: float | None = None) -> None: ...


@pytest.fixture
def pool(spec_settings):
    """A pool of two cells of the smoke grid, and what it has shown."""
    shown: list[base.Event] = []
    made = local._Pool(load_grid("smoke").cells[:2], spec_settings, shown.append, Retries(0))
    return made, shown


@pytest.fixture
def spec_settings(here):
    from experiments.settings import Settings

    return Settings(runs=here / "runs", data=here / "data", tracking=False)


def test_an_exception_while_a_cell_starts_leaves_none_running(pool, monkeypatch):
    made, shown = pool
    first = FakeProcess()

    def start(cell) -> None:
        if made.running:
            raise RuntimeError("the fork server died")
        made.running[cell.spec.spec_id] = local._Job(cell, first, 0, Attempts())

    monkeypatch.setattr(made, "_start", start)
    with pytest.raises(RuntimeError, match="fork server"):
        made.execute(jobs=2, fail_fast=False)
    assert not first.alive
    assert shown == [Stopping(1, local.GRACE_SECONDS)], "told before the wait"


def test_a_folder_that_cannot_be_used_fails_its_cell_alone(pool, spec_settings):
    made, shown = pool
    for cell in made.waiting:
        spec_settings.runs.mkdir(exist_ok=True)
        (spec_settings.runs / cell.spec.spec_id).write_text("a file in place of the folder")
    assert made.execute(jobs=1, fail_fast=False)
    ended = [event for event in shown if isinstance(event, Ended)]
    assert [event.status for event in ended] == ["failed", "failed"]
    assert all("cannot be written (" in event.message for event in ended)


def test_what_a_cell_says_in_its_log_reaches_the_terminal(pool, spec_settings, capsys):
    made, shown = pool
    cell = made.waiting.pop()
    run_dir = spec_settings.runs / cell.spec.spec_id
    run_dir.mkdir(parents=True)
    earlier = "2026-01-01T00:00:00+00:00 warning: of an earlier attempt\n"
    (run_dir / "log.txt").write_text(
        f"{earlier}2026-01-02T00:00:00+00:00 warning: x.ckpt: damaged\nwarning: x.ckpt: damaged\n"
        "2026-01-02T00:00:00+00:00 error: the disk broke\n"
    )
    process = FakeProcess()
    process.terminate()
    made.running[cell.spec.spec_id] = local._Job(cell, process, len(earlier), Attempts())
    made._collect(fail_fast=False)
    assert shown[0] == Warned(cell, "x.ckpt: damaged")
    assert isinstance(shown[1], Ended) and "exit code 130: the disk broke; see " in shown[1].message
    for event in [*shown, Stopping(2, 60)]:
        show.ProgressLines(2, 0)(event)
    told = capsys.readouterr()
    assert "waiting for 2 cells to write their checkpoints (at most 60 s)" in told.out
    assert f"warning: {cell.label}: x.ckpt: damaged" in told.err


# --- the lock ---------------------------------------------------------------------------------------


def test_looking_at_a_lock_disturbs_no_start_and_no_other_look(tmp_path):
    """Looks all through many starts: none is refused, and free locks never look taken."""
    import threading

    with locked(tmp_path):
        assert is_running(tmp_path)
    assert not is_running(tmp_path)
    ending = threading.Event()

    def look() -> None:
        while not ending.is_set():
            is_running(tmp_path)

    looks = [threading.Thread(target=look) for _ in range(4)]
    for thread in looks:
        thread.start()
    try:
        for _ in range(50):
            with locked(tmp_path):
                pass
    finally:
        ending.set()
        for thread in looks:
            thread.join()


def test_two_looks_at_once_see_a_free_lock(tmp_path):
    import fcntl

    (tmp_path / "lock").touch()
    with open(tmp_path / "lock") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # what another `status` does at this moment
        assert not is_running(tmp_path)


def test_states_of_damaged_cells_carry_what_to_do(here):
    damage(here / "runs", "record.json", b"{")
    damaged = make_plan(load_grid("smoke"), here / "runs")[0]
    assert damaged.state is CellState.DAMAGED and not damaged.done and not damaged.to_train
    assert "restore it, or delete it" in damaged.problem


def test_reasons_are_the_system_s_words():
    assert reason(OSError(errno.ENOSPC, "x")) == "No space left on device"
    assert reason(OSError("two\nlines")) == "two lines"
