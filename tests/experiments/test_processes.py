"""One cell in two processes (gloo): the numbers of one process, whatever becomes of either."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from attnres.errors import UserError
from attnres.initialise import build
from attnres.stream_spec import StreamSpec
from experiments.__main__ import main
from experiments.checkpoint import load_latest
from experiments.dynamics import read_dynamics
from experiments.feasibility import check_processes
from experiments.group import Group, joined
from experiments.history import last_row, read_rows
from experiments.optim import build_optimizer
from experiments.parallel import Sharded
from experiments.record import RunStatus, read_record
from experiments.run import run
from experiments.settings import Settings
from tests.experiments.conftest import make_spec
from tests.experiments.mirrored import all_runs, history

TOGETHER = Path(__file__).with_name("together.py")
TOLERANCE = 1e-5
FULL = StreamSpec(name="full_attnres")
BLOCK = StreamSpec(name="block_attnres", options={"num_blocks": 2})
CELLS = {
    "baseline": (make_spec(), {}),
    "block": (make_spec(stream=BLOCK), {}),
    "full": (make_spec(stream=FULL), {}),
    "micro-batches": (make_spec(stream=FULL, seed=1), {"micro_sequences": 2}),
    "tied": (
        make_spec().model_copy(update={"shape": make_spec().shape.model_copy(update={"tied": True})}),
        {},
    ),
    "sharded baseline": (make_spec(seed=2), {"strategy": "fsdp"}),
    "sharded block": (make_spec(stream=BLOCK, seed=2), {"strategy": "fsdp", "micro_sequences": 4}),
    "sharded full": (make_spec(stream=FULL, seed=2), {"strategy": "fsdp"}),
    "begun by one": (make_spec(stream=FULL, seed=3), {"strategy": "fsdp"}),
}
"""Each with settings of its own; about every second step is probed."""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TOGETHER.parents[2])}


def unfinished(run_dir: Path, copy: Path) -> None:
    """A copy that has come to its newest checkpoint."""
    shutil.copytree(run_dir, copy)
    (copy / "record.json").unlink()
    assert load_latest(copy / "checkpoints").step == 16


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_root, template) -> dict[int, Path]:
    """Folders of runs of `CELLS`, trained in one process and in two; those of two are mirrored to MLflow."""
    folders = {processes: tmp_path_factory.mktemp(f"in_{processes}") for processes in (1, 2)}
    shutil.copy(template, folders[2] / "mlflow.db")
    with sqlite3.connect(folders[2] / "mlflow.db") as database:
        location = f"file://{folders[2]}/mlflow_artefacts"
        database.execute("UPDATE experiments SET artifact_location = ?", [location])
    common = {"data": data_root, "evaluations": 2, "tracking": False, "checkpoint_steps": 8}
    listed = []
    for spec, own in CELLS.values():
        settings = Settings(runs=folders[1], **common, **own)
        run(spec, settings)
        together = {"runs": folders[2], "processes": 2, "tracking": spec is CELLS["baseline"][0]}
        settings = settings.model_copy(update=together)
        listed.append((spec.model_dump(mode="json"), settings.model_dump(mode="json")))
    begun = CELLS["begun by one"][0].spec_id
    unfinished(folders[1] / begun, folders[2] / begun)
    path = folders[2] / "cells.json"
    path.write_text(json.dumps(listed))
    done = subprocess.run(
        [sys.executable, TOGETHER, path], env=environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return folders


@pytest.mark.parametrize("name", CELLS)
def test_losses_norms_and_validation_of_two_processes_are_those_of_one(trained, name):
    alone, together = (read_rows(trained[n] / CELLS[name][0].spec_id / "metrics.jsonl") for n in (1, 2))
    assert [row["step"] for row in together] == list(range(1, 25))
    for one, two in zip(alone, together, strict=True):
        del one["seconds"], two["seconds"]
        assert two == pytest.approx(one, rel=TOLERANCE)
    records = [read_record(trained[n] / CELLS[name][0].spec_id) for n in (1, 2)]
    strategy = CELLS[name][1].get("strategy", "ddp")
    assert [(record.processes, record.strategy) for record in records] == [(1, "single"), (2, strategy)]
    assert records[1].attempts == (2 if name == "begun by one" else 1)
    assert records[1].val_loss == pytest.approx(records[0].val_loss, rel=TOLERANCE)
    assert records[1].val_loss_se == pytest.approx(records[0].val_loss_se, rel=TOLERANCE)
    assert records[1].val_tokens == records[0].val_tokens


@pytest.mark.parametrize("name", CELLS)
def test_d02_d06_what_is_seen_over_depth_is_what_one_process_sees(trained, name):
    alone, together = (
        read_dynamics(trained[n] / CELLS[name][0].spec_id / "dynamics.parquet") for n in (1, 2)
    )
    assert alone.keys() == together.keys() and len(alone) > 10
    for step, readings in alone.items():
        assert [reading[:4] for reading in together[step]] == [reading[:4] for reading in readings]
        values = [reading.value for reading in readings]
        assert [reading.value for reading in together[step]] == pytest.approx(values, rel=TOLERANCE, abs=1e-9)


@pytest.mark.parametrize("name", ["full", "sharded full"])
def test_a_run_of_two_processes_goes_on_in_one(trained, tmp_path, data_root, name):
    spec = CELLS[name][0]
    unfinished(trained[2] / spec.spec_id, tmp_path / spec.spec_id)
    ended = run(spec, Settings(runs=tmp_path, data=data_root, tracking=False, evaluations=2))
    assert ended.attempts == 2
    assert ended.val_loss == pytest.approx(read_record(trained[1] / spec.spec_id).val_loss, rel=TOLERANCE)


def test_checkpoints_of_shards_have_the_form_of_one_process(trained):
    """Whole tensors under the names and numbers of one process, equal in every element."""
    spec_id = CELLS["sharded full"][0].spec_id
    one, two = (load_latest(trained[n] / spec_id / "checkpoints").state for n in (1, 2))
    assert one["model"].keys() == two["model"].keys()
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, rtol=1e-4, atol=1e-6)
    assert one["optimizer"]["param_groups"] == two["optimizer"]["param_groups"]
    for number, moments in one["optimizer"]["state"].items():
        for name, value in moments.items():
            torch.testing.assert_close(two["optimizer"]["state"][number][name], value, rtol=1e-3, atol=1e-6)


def test_every_parameter_and_moment_is_divided(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("data_parallel",))
        spec = make_spec(stream=FULL)
        model = build(spec.shape, spec.stream, spec.seed)
        Sharded(Group()).divide(model, mesh)
        assert {type(parameter.data) for parameter in model.parameters()} == {DTensor}
        optimizer = build_optimizer(model, spec)
        tokens_BT = torch.zeros((1, spec.shape.seq_len), dtype=torch.int64)
        model.loss(tokens_BT, tokens_BT).backward()
        optimizer.step()
        moments = [state["exp_avg"] for state in optimizer.state.values()]
        assert {type(moment) for moment in moments} == {DTensor} and len(moments) == len(
            [*model.parameters()]
        )
    finally:
        dist.destroy_process_group()


def test_m22_one_process_tells_mlflow(trained):
    (told,) = all_runs(trained[2])
    assert told.info.status == "FINISHED" and told.data.tags["processes"] == "2"
    rows = read_rows(trained[2] / CELLS["baseline"][0].spec_id / "metrics.jsonl")
    expected = [(row["step"], row["train_loss"]) for row in rows]
    assert history(trained[2], told.info.run_id, "train_loss") == expected


class Started:
    """``python -m experiments run`` in two processes."""

    def __init__(self, spec_path: Path, settings_path: Path) -> None:
        command = ["run", str(spec_path), "--settings", str(settings_path), "--processes", "2"]
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "experiments", *command],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip

    def wait_for_step(self, run_dir: Path, step: int) -> float:
        """Seconds from the start until the history has ``step``."""
        while (row := last_row(run_dir)) is None or row["step"] < step:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < self.began + 120, f"step {step} not reached"
            time.sleep(0.005)
        return time.monotonic() - self.began

    def send(self, rank: int, number: signal.Signals) -> float:
        """Signal one of the two; seconds until everything has ended."""
        started = psutil.Process(self.process.pid).children(recursive=True)
        ranks = [child for child in started if child.ppid() != self.process.pid]
        assert len(ranks) == 2
        sent = time.monotonic()
        sorted(ranks, key=lambda child: child.create_time())[rank].send_signal(number)
        self.output = self.process.communicate(timeout=60)
        psutil.wait_procs(ranks, timeout=5)
        assert not any(child.is_running() for child in ranks)
        return time.monotonic() - sent


@pytest.mark.faults
def test_l12_l19_a_run_goes_on_whichever_process_is_stopped_or_killed(tmp_path, data_root):
    spec = make_spec(stream=FULL, tokens=400 * 512)
    settings = Settings(
        runs=tmp_path / "runs", data=data_root, tracking=False, checkpoint_steps=7, evaluations=2
    )
    expected = run(spec, settings.model_copy(update={"runs": tmp_path / "undisturbed"}))
    run_dir = settings.runs / spec.spec_id
    paths = tmp_path / "spec.json", tmp_path / "settings.json"
    paths[0].write_text(spec.model_dump_json())
    paths[1].write_text(settings.model_dump_json())

    started = Started(*paths)
    started.wait_for_step(run_dir, 20)
    assert started.send(1, signal.SIGTERM) < 28
    assert started.process.returncode == 130
    assert read_record(run_dir).status is RunStatus.INTERRUPTED
    newest = load_latest(run_dir / "checkpoints")
    rows = read_rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, newest.step + 1)), "all stop at one step"
    newest.path.write_bytes(newest.path.read_bytes()[:-10])  # both must choose the one before

    started = Started(*paths)
    assert started.wait_for_step(run_dir, newest.step + 20) < 60
    assert started.send(1, signal.SIGKILL) < 28
    assert started.process.returncode == 1
    assert "error: process 2 of 2 was ended by SIGKILL; the same command continues" in started.output[1]
    record = read_record(run_dir)
    assert record.status is RunStatus.FAILED and record.failed_at_step > newest.step

    started = Started(*paths)
    assert started.wait_for_step(run_dir, record.failed_at_step + 20) < 60
    assert started.send(0, signal.SIGKILL) < 28
    assert started.process.returncode == 1
    assert read_record(run_dir) is None, "nobody was left to write it"
    assert not list(run_dir.glob("**/*.tmp"))

    ended = run(spec, settings)  # a run may move to another number of processes
    assert (ended.status, ended.attempts) == (RunStatus.FINISHED, 4)
    rows = read_rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 401))
    assert ended.val_loss == pytest.approx(expected.val_loss, rel=TOLERANCE)
    assert ended.train_loss == pytest.approx(expected.train_loss, rel=TOLERANCE)


def test_a_batch_without_equal_shares_is_refused_before_anything_is_written(tmp_path, capsys):
    spec = make_spec()
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    (tmp_path / "settings.json").write_text(Settings(runs=tmp_path / "runs").model_dump_json())
    command = ["run", str(tmp_path / "spec.json"), "--settings", str(tmp_path / "settings.json")]
    assert main([*command, "--processes", "3"]) == 2
    assert (
        "processes 3: a batch of 16 sequences (512 tokens of 32) has no equal shares"
        in capsys.readouterr().err
    )
    assert main([*command, "--processes", "0"]) == 2
    assert "--processes 0: must be at least 1" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    check_processes(spec, Settings(processes=2, micro_sequences=16))
    with pytest.raises(UserError, match="micro_sequences 3: does not divide the 8 sequences of each of 2"):
        check_processes(spec, Settings(processes=2, micro_sequences=3))


def test_another_number_of_tasks_than_processes_is_refused(monkeypatch):
    for name, value in {
        "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "3", "SLURM_NTASKS_PER_NODE": "3", "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0", "SLURM_JOB_NAME": "cell",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="processes 2: 3 were started"), joined(Settings(processes=2), "cell"):
        pass


def test_one_process_alone_asks_nobody():
    alone = Group()
    assert alone.leads and alone.lead(lambda: 3) == 3
    assert (alone.mean(0.1), alone.any(False), alone.any(True), alone.failure()) == (0.1, False, True, None)
