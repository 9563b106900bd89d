"""The Slurm launcher without Slurm: scripts and arrays, the queue's word, one job a cell, the way of a signal."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from attnres.errors import UserError
from attnres.shape import ModelShape
from experiments.run_folder import locked, prepare_folder
from experiments.settings import Settings
from sweeps.__main__ import main
from sweeps.grid import ADDITIVE, Cell, Rung, load_grid, pairs
from sweeps.launch.slurm import SlurmArrays, cell_job, split, submit_array
from sweeps.launch.slurm_job import CellJob
from sweeps.launch.slurm_watch import Watch
from sweeps.plan import CellState, make_plan, with_queue, write_plan
from sweeps.site import Site
from sweeps.slurm_queue import batches, read_queue, write_batch
from tests.sweeps.fake_slurm import FakeSlurm


@pytest.fixture
def fake(tmp_path, monkeypatch) -> FakeSlurm:
    slurm = FakeSlurm(tmp_path / "fake")
    monkeypatch.setenv("PATH", slurm.path)
    return slurm


def cells_of(count: int) -> list[Cell]:
    shape = ModelShape(depth=2, width=8, num_heads=2, mlp_width=16, vocab_size=64, seq_len=32)
    rung = Rung(shape, 8, seeds=tuple(range(count)))
    return pairs(rung, arms=(ADDITIVE,), dataset="synthetic", recipe="smoke")


def settings_in(tmp_path: Path) -> Settings:
    return Settings(runs=tmp_path / "runs", data=tmp_path / "data", grid="g", tracking=False, threads=3)


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (2, [2]), (1001, [1000, 1])])
def test_w14_one_task_a_cell_split_under_the_limit(fake, tmp_path, count, sizes):
    settings = settings_in(tmp_path)
    cells = cells_of(count)
    for chunk in split(cells, Site().array_limit):
        submit_array(
            {cell.spec.spec_id: cell_job(cell, settings, Site()) for cell in chunk}, settings, Site()
        )
    found = []
    for script, size in zip(fake.scripts(), sizes, strict=True):
        ranges = re.findall(r"^#SBATCH --array=(.*)$", script, flags=re.MULTILINE)
        assert ranges == ([f"0-{size - 1}%{min(size, 256)}"] if size > 1 else [])
        batch = re.search(r"--job-name=attnres-(\S+)", script)[1]
        listed = batches(settings.runs)[batch]
        assert len(listed) == size
        found += listed
        tasks = sorted((settings.runs / "slurm" / batch).glob("*_submitted.pkl"), key=task_number)
        trained = [Path(pickle.loads(task.read_bytes()).function.run_dir).name for task in tasks]
        assert trained == list(listed), "the queue's task numbers name other cells than the jobs train"
    assert found == [cell.spec.spec_id for cell in cells]


def task_number(path: Path) -> int:
    return int(path.name.split("_")[1]) if path.name.split("_")[1].isdigit() else 0


def test_no_array_is_empty():
    assert split([], 10) == []


def test_the_script_asks_for_what_the_site_says_and_signals_the_step(fake, tmp_path):
    site = Site(partition="gpu", account="p1", minutes=90, gpus=1, memory_gb=1.5, signal_seconds=200,
                side_by_side=2, setup=("module load cuda",), sbatch={"reservation": "tuesday"})  # fmt: skip
    settings = settings_in(tmp_path)
    submit_array({c.spec.spec_id: cell_job(c, settings, site) for c in cells_of(3)}, settings, site)
    (script,) = fake.scripts()
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script, flags=re.MULTILINE))
    assert options["signal"] == "USR2@200", "with B: the batch shell would get it, and keep it"
    assert "requeue" in options
    expected = {
        "partition": "gpu", "account": "p1", "time": "90", "gpus-per-node": "1", "mem": "1536MB", "nodes": "1",
        "ntasks-per-node": "1", "cpus-per-task": "3", "array": "0-2%2", "reservation": "tuesday",
    }  # fmt: skip
    assert {name: options[name] for name in expected} == expected
    assert script.index("module load cuda") < script.index("srun ")
    assert "--cpus-per-task=3" in script[script.index("srun ") :]


def launched(settings: Settings, cells: list[Cell], site_file: Path | None = None) -> list[str]:
    """Submit as a sweep would, without waiting; returns what it said."""
    told: list[str] = []
    launcher = SlurmArrays(site_file)
    launcher._submit(cells, settings, lambda event: told.append(getattr(event, "message", "")))
    return told


def queue_lines(settings: Settings, state: str, reason: str = "None") -> list[str]:
    return [
        f"attnres-{batch}|{task}|{number}_{task}|{state}|{reason}"
        for number, (batch, cells) in enumerate(batches(settings.runs).items(), start=1)
        for task in range(len(cells))
    ]


def test_w07_a_cell_in_the_queue_is_never_submitted_again(fake, tmp_path):
    settings, cells = settings_in(tmp_path), cells_of(3)
    assert launched(settings, cells[:2]) == ["submitted 2 cells as job 1"]
    for state in ("PENDING", "RUNNING", "PREEMPTED", "REQUEUED", "COMPLETING", "REQUEUE_HOLD"):
        fake.set_queue(*queue_lines(settings, state))
        assert launched(settings, cells[:2]) == ["2 cells are queued or running already: not submitted again"]
    assert len(fake.scripts()) == 1
    FileLock(settings.runs / "slurm" / "lock").acquire(timeout=0).lock.release()  # free for the next sweep
    told = launched(settings, cells)  # one more cell: only that one
    assert told == [
        "2 cells are queued or running already: not submitted again",
        "submitted 1 cells as job 2",
    ]
    assert [batch for batch in batches(settings.runs).values() if len(batch) == 1] == [
        (cells[2].spec.spec_id,)
    ]


def test_cells_whose_jobs_are_gone_are_submitted_again(fake, tmp_path):
    settings, cells = settings_in(tmp_path), cells_of(2)
    launched(settings, cells)
    fake.set_queue("attnres-of-another|0|9_0|RUNNING|None", *queue_lines(settings, "CANCELLED"))
    assert launched(settings, cells) == ["submitted 2 cells as job 2"]


def test_without_the_queues_word_nothing_is_submitted(fake, tmp_path):
    settings, cells = settings_in(tmp_path), cells_of(2)
    launched(settings, cells)
    (fake.folder / "down").touch()
    with pytest.raises(UserError, match="squeue: Unable to contact slurm controller; try again"):
        launched(settings, cells)
    assert len(fake.scripts()) == 1


@pytest.mark.usefixtures("fake")
def test_a_cell_at_work_without_a_job_is_not_submitted(tmp_path):
    settings, cells = settings_in(tmp_path), cells_of(2)
    with locked(prepare_folder(cells[0].spec, settings)):
        told = launched(settings, cells)
    assert told == [
        "1 cells are queued or running already: not submitted again",
        "submitted 1 cells as job 1",
    ]


def test_w07_status_says_queued_and_running(fake, grid_file, tmp_path):
    grid = load_grid(str(grid_file("in_queue")))
    settings = settings_in(tmp_path)
    write_batch(settings.runs, "in_queue-1", [cell.spec.spec_id for cell in grid.cells[:3]])
    states = {}
    for state in ("PREEMPTED", "RUNNING"):
        fake.set_queue(
            f"attnres-in_queue-1|0|5_0|{state}|None",
            "attnres-in_queue-1|1|5_1|PENDING|Priority",
            "attnres-in_queue-1|7|5_7|PENDING|Priority",
        )
        plan = with_queue(make_plan(grid, settings.runs), read_queue(settings.runs))
        states[state] = [item.state for item in plan]
    queued, missing = CellState.QUEUED, CellState.MISSING
    assert states["PREEMPTED"] == [queued, queued, missing, missing]
    assert states["RUNNING"] == [CellState.RUNNING, queued, missing, missing]
    assert plan[1].problem == "job 5_1: pending, Priority"
    assert all(item.to_train for item in plan)


def test_squeue_is_not_asked_where_nothing_was_submitted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert read_queue(tmp_path) == {}


def test_w01_w03_a_job_that_left_no_record_is_a_failed_cell_and_the_others_are_watched(
    fake, tmp_path, monkeypatch
):
    monkeypatch.setattr("sweeps.launch.slurm_watch.POLL_SECONDS", 0.1)
    settings, cells = settings_in(tmp_path), cells_of(2)
    launched(settings, cells)
    lines = queue_lines(settings, "RUNNING")
    fake.set_queue(lines[1])
    events = []
    watch = Watch(cells, settings, lambda event: (events.append(event), fake.set_queue()))
    assert watch.wait(fail_fast=False)
    ended = [(event.cell, event.status) for event in events if hasattr(event, "status")]
    assert ended == [(cells[0], "failed"), (cells[1], "failed")]
    assert "its job left the queue before the cell was done" in events[0].message


def test_an_interrupted_sweep_tells_how_to_end_its_jobs_and_no_others(fake, tmp_path):
    settings, cells = settings_in(tmp_path), cells_of(3)
    launched(settings, cells[:2])
    launched(settings, cells[2:])
    fake.set_queue(*queue_lines(settings, "PENDING"))
    notes = []
    watch = Watch(cells[2:], settings, lambda event: notes.append(getattr(event, "message", "")))
    assert watch._ask()
    watch.stop_requested = True
    assert not watch.wait(fail_fast=False)
    (mine,) = [batch for batch, tasks in batches(settings.runs).items() if tasks == (cells[2].spec.spec_id,)]
    assert notes == [
        f"1 cells stay in the queue, the same command watches them; `scancel --name=attnres-{mine}` ends them"
    ]
    assert fake.calls() == [], "stopping a sweep stops no job"


def test_fail_fast_takes_what_has_not_started_out_of_the_queue(fake, tmp_path):
    settings, cells = settings_in(tmp_path), cells_of(3)
    launched(settings, cells)
    fake.set_queue(*queue_lines(settings, "PENDING")[1:])
    watch = Watch(cells, settings, lambda _: None)
    assert watch.wait(fail_fast=True)
    assert fake.calls() == ["scancel --state=PENDING 1_1 1_2"]


def test_throughput_is_measured_by_a_job_not_where_the_sweep_runs(fake, grid_file, tmp_path, monkeypatch):
    monkeypatch.setattr("sweeps.launch.slurm.POLL_SECONDS", 0.05)
    grid, settings, study = (
        load_grid(str(grid_file("timed"))),
        settings_in(tmp_path),
        tmp_path / "results/timed",
    )
    write_plan(grid, study)
    told: list[str] = []
    with pytest.raises(UserError, match="the job that measured throughput failed"):  # the queue stays empty
        SlurmArrays().measure(grid, study, settings, lambda note: told.append(note.message))
    assert told == ["the arms' throughput is measured by job 1"] and len(fake.scripts()) == 1
    (submitted,) = (settings.runs / "slurm").glob("*/1_submitted.pkl")
    job = pickle.loads(submitted.read_bytes()).function
    assert (job.study, job.settings, job.grid) == (study, settings, grid)


def test_launcher_slurm_without_slurm_is_one_line_and_exit_code_2(tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "sweeps", "run", "smoke", "--launcher", "slurm"],
        capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: launcher slurm: sbatch, squeue, scontrol, scancel, srun not found")
    assert done.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "arguments", "named"),
    [
        ("nodes = 2\n", ("--launcher", "slurm"), "nodes 2, gpus 0: --processes 1 of a cell do not fill them"),
        (
            "gpus = 4\n",
            ("--launcher", "slurm", "--processes", "2"),
            "set --processes 4, or mend the site file",
        ),
        ("", ("--launcher", "slurm", "--processes", "5"), "processes 5: a batch of"),
        ("gpus = 0\n", ("--launcher", "slurm", "--device", "cuda"), "site: gpus 0, but --device cuda"),
        ("minutes = 5\n", ("--launcher", "local"), "the local launcher has no site"),
        ("gpu = 1\n", ("--launcher", "slurm"), "unknown gpu; Site knows"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_a_site_that_carries_no_cell_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys, text, arguments, named
):
    (tmp_path / "my.toml").write_text(text)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert main(["run", "smoke", "--site", str(tmp_path / "my.toml"), *arguments]) == 2
    told = capsys.readouterr().err
    assert named in told and told.count("\n") == 1
    assert list(work.iterdir()) == []


def test_w06_w10_l12_the_script_brings_the_signal_to_the_training_and_another_job_continues(
    fake, tmp_path, grid_file
):
    """The generated script under a stand-in for srun: signal, checkpoint, requeue; then under another job id."""
    grid = load_grid(str(grid_file("signalled", widths=(8,), tokens_per_param=400)))
    settings = settings_in(tmp_path).model_copy(update={"threads": 1})
    cells = list(grid.cells[:1])
    launched(settings, cells)
    (script,) = fake.scripts()
    run_dir = settings.runs / cells[0].spec.spec_id

    job = start(script, tmp_path, "1")
    deadline = time.monotonic() + 90
    while not (run_dir / "metrics.jsonl").exists() or (run_dir / "metrics.jsonl").stat().st_size < 2000:
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGUSR2)  # Slurm signals the process group of the step
    assert job.wait(timeout=60) != 0
    assert fake.calls() == ["scontrol requeue 1"]
    assert json.loads((run_dir / "record.json").read_text())["status"] == "interrupted"
    assert list((run_dir / "checkpoints").glob("*.ckpt"))

    (submitted,) = (settings.runs / "slurm").glob("*/1_submitted.pkl")
    submitted.rename(submitted.with_name("77_submitted.pkl"))  # submitit finds a task by its job's number
    assert start(script, tmp_path, "77").wait(timeout=120) == 0
    record = json.loads((run_dir / "record.json").read_text())
    assert (record["status"], record["attempts"]) == ("finished", 2)
    steps = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, cells[0].spec.steps + 1))
    assert len(list(settings.runs.glob("*/spec.json"))) == 1


def test_a_task_of_an_array_requeues_itself_alone(fake, tmp_path, monkeypatch, capsys):
    """SLURM_JOB_ID of the last task is the array's: `scontrol requeue` of it brought every task back."""
    job = CellJob(str(tmp_path), requeues=2, useful_seconds=60)
    for name, value in (("SLURM_JOB_ID", "5"), ("SLURM_ARRAY_JOB_ID", "5"), ("SLURM_ARRAY_TASK_ID", "3")):
        monkeypatch.setenv(name, value)
    job._requeue(stuck=False)
    assert fake.calls() == ["scontrol requeue 5_3"]
    (fake.folder / "own_state").write_text("COMPLETING\n")
    job._requeue(stuck=False)
    assert "job 5_3 is being cancelled: not requeued" in capsys.readouterr().err
    (fake.folder / "own_state").write_text("RUNNING\n")
    job._requeue(stuck=True)
    assert "error: not one step before the time limit; raise `minutes`" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    job._requeue(stuck=False)
    assert "error: requeued 2 times" in capsys.readouterr().err
    assert len(fake.calls()) == 1


def start(script: str, tmp_path: Path, job_id: str) -> subprocess.Popen[bytes]:
    path = tmp_path / f"script_{job_id}.sh"
    path.write_text(script.replace("\nsrun ", "\nexec srun "))  # one process, as the step is one group
    environment = {**os.environ, "SLURM_JOB_ID": job_id, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(["bash", str(path)], env=environment, cwd=tmp_path, start_new_session=True)
