import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from attnres.errors import UserError
from attnres.initialise import build
from attnres.stream_spec import StreamSpec
from experiments import run as run_module
from experiments.callbacks import Recorder
from experiments.checkpoint import load_latest
from experiments.data.base import DATASETS
from experiments.history import read_rows
from experiments.record import RunStatus, read_record
from experiments.run import run
from experiments.settings import Settings

FULL = StreamSpec(name="full_attnres")


def rows_without_time(run_dir: Path) -> list[dict]:
    return [
        {key: value for key, value in row.items() if key != "seconds"}
        for row in read_rows(run_dir / "metrics.jsonl")
    ]


def start(spec, settings, tmp_path: Path) -> subprocess.Popen:
    """The cell in a process of its own, through the command people use."""
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    (tmp_path / "settings.json").write_text(settings.model_dump_json())
    return subprocess.Popen(
        [sys.executable, "-m", "experiments", "run", tmp_path / "spec.json", "--settings", tmp_path / "settings.json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_step(run_dir: Path, step: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if (rows := read_rows(run_dir / "metrics.jsonl")) and rows[-1]["step"] >= step:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    raise AssertionError(f"step {step} not reached")


@pytest.fixture(scope="module")
def reference(tmp_path_factory, data_root, spec_of):
    """An undisturbed run to compare with: (spec, record, rows)."""
    settings = Settings(runs=tmp_path_factory.mktemp("reference"), data=data_root, tracking=False)
    spec = spec_of(stream=FULL)
    return spec, run(spec, settings), rows_without_time(settings.runs / spec.spec_id)


def test_a_run_ends_with_a_whole_record_and_one_row_a_step(reference):
    spec, record, rows = reference
    assert record.status is RunStatus.FINISHED
    assert [row["step"] for row in rows] == list(range(1, 25))
    assert [row["step"] for row in rows if "val_loss" in row] == [6, 12, 18, 24]
    assert rows[-1]["tokens"] == spec.tokens == record.tokens
    assert rows[-1]["lr"] == pytest.approx(1e-3)
    assert record.val_loss == rows[-1]["val_loss"] < rows[5]["val_loss"]
    assert 0 < record.val_loss_se < 0.1 * record.val_loss
    assert record.compute == pytest.approx(
        spec.tokens * (record.flops_per_token_matmul + record.flops_per_token_attention
                       + record.flops_per_token_head + record.flops_per_token_stream)
    )  # fmt: skip
    assert record.params_stream > 0 and record.flops_per_token_stream > 0


def test_a_finished_run_is_not_trained_again(reference, settings):
    spec, record, _ = reference
    first = run(spec, settings)
    stamp = (settings.runs / spec.spec_id / "record.json").stat().st_mtime_ns
    assert run(spec, settings) == first
    assert (settings.runs / spec.spec_id / "record.json").stat().st_mtime_ns == stamp
    assert first.val_loss == record.val_loss


@pytest.mark.parametrize("stop_at", [(5,), (6, 7, 12), (23,), (24,)])
def test_l04_l15_l16_interrupted_runs_equal_the_uninterrupted_one(reference, settings, monkeypatch, stop_at):
    """Stopped after the given steps (before, at and after a validation): bitwise the same history."""
    spec, record, rows = reference
    original = Recorder.on_train_batch_end
    remaining = list(stop_at)

    def stop_here(self, trainer, module, *rest):
        if remaining and module.step == remaining[0]:
            remaining.pop(0)
            self.stop.received = signal.SIGTERM
        original(self, trainer, module, *rest)

    monkeypatch.setattr(Recorder, "on_train_batch_end", stop_here)
    statuses = [run(spec, settings).status for _ in range(len(stop_at) if stop_at != (24,) else 0)]
    assert set(statuses) <= {RunStatus.INTERRUPTED}
    ended = run(spec, settings)
    assert ended.status is RunStatus.FINISHED
    assert rows_without_time(settings.runs / spec.spec_id) == rows
    assert (ended.val_loss, ended.train_loss) == (record.val_loss, record.train_loss)
    assert ended.attempts == len(statuses) + 1


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGUSR1, 130), (signal.SIGKILL, -9)],
)
def test_l09_l12_l13_m07_signals_end_at_a_step_boundary_and_the_next_start_continues(
    spec_of, settings, tmp_path, number, code
):
    spec = spec_of(tokens=400 * 512)
    undisturbed = settings.model_copy(update={"runs": tmp_path / "undisturbed"})
    expected = run(spec, undisturbed)
    settings = settings.model_copy(update={"checkpoint_steps": 7})
    run_dir = settings.runs / spec.spec_id
    process = start(spec, settings, tmp_path)
    wait_for_step(run_dir, 20, process)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    record = read_record(run_dir)
    assert (record is None) if number is signal.SIGKILL else (record.status is RunStatus.INTERRUPTED)
    newest = load_latest(run_dir / "checkpoints")
    assert newest.step >= (14 if number is signal.SIGKILL else 20)
    resumed = run(spec, settings)
    assert resumed.status is RunStatus.FINISHED
    assert resumed.val_loss == expected.val_loss
    assert rows_without_time(run_dir) == rows_without_time(undisturbed.runs / spec.spec_id)
    assert resumed.attempts == 2


def test_w04_a_second_process_on_the_same_run_is_refused(spec_of, settings):
    spec = spec_of()
    run_dir = run_module.prepare_folder(spec, settings)
    with FileLock(run_dir / "lock"), pytest.raises(UserError, match="already running"):
        run(spec, settings)


def test_l21_checkpoints_load_as_weights_only_in_a_fresh_process(spec_of, settings, monkeypatch):
    spec = spec_of()
    original = Recorder.on_train_batch_end

    def stop_here(self, trainer, module, *rest):
        self.stop.received = signal.SIGTERM if module.step == 9 else None
        original(self, trainer, module, *rest)

    monkeypatch.setattr(Recorder, "on_train_batch_end", stop_here)
    run(spec, settings)
    path = load_latest(settings.runs / spec.spec_id / "checkpoints").path
    code = "import sys, torch; print(sorted(torch.load(sys.argv[1], weights_only=True)))"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert "optimizer" in done.stdout


def test_r16_a_checkpoint_of_another_run_is_refused(spec_of, settings, monkeypatch):
    baseline, variant = spec_of(), spec_of(stream=FULL)
    original = Recorder.on_train_batch_end

    def stop_here(self, trainer, module, *rest):
        self.stop.received = signal.SIGTERM if module.step == 9 else None
        original(self, trainer, module, *rest)

    monkeypatch.setattr(Recorder, "on_train_batch_end", stop_here)
    run(baseline, settings)
    target = run_module.prepare_folder(variant, settings)
    (settings.runs / baseline.spec_id / "checkpoints").rename(target / "checkpoints")
    with pytest.raises(UserError, match=baseline.spec_id):
        run(variant, settings)


def test_m11_a_loss_that_stops_being_a_number_is_diverged_at_its_step(spec_of, settings, monkeypatch):
    import experiments.module as module

    step_of = module.optimizer_step

    def poisoned(model, *rest, **options):
        poisoned.calls += 1
        loss, norm = step_of(model, *rest, **options)
        return (float("inf"), norm) if poisoned.calls == 10 else (loss, norm)

    poisoned.calls = 0
    monkeypatch.setattr(module, "optimizer_step", poisoned)
    spec = spec_of()
    record = run(spec, settings)
    assert (record.status, record.failed_at_step, record.val_loss) == (RunStatus.DIVERGED, 10, None)
    assert "Infinity" not in (settings.runs / spec.spec_id / "metrics.jsonl").read_text()
    assert "diverged at step 10" in (settings.runs / spec.spec_id / "log.txt").read_text()
    assert run(spec, settings) == record, "a diverged run would only diverge again"


def test_m08_w01_whatever_a_step_raises_is_failed_with_its_traceback_in_the_log(
    spec_of, settings, monkeypatch
):
    import experiments.module as module

    step_of = module.optimizer_step

    def broken(*arguments, **options):
        broken.calls += 1
        return step_of(*arguments, **options) if broken.calls < 8 else 1 / 0

    broken.calls = 0
    monkeypatch.setattr(module, "optimizer_step", broken)
    spec = spec_of()
    record = run(spec, settings)
    assert (record.status, record.failed_at_step, record.val_loss) == (RunStatus.FAILED, 8, None)
    assert "ZeroDivisionError" in (settings.runs / spec.spec_id / "log.txt").read_text()
    monkeypatch.setattr(module, "optimizer_step", step_of)
    assert run(spec, settings).status is RunStatus.FINISHED, "a failed run is tried again"


def test_paired_arms_see_the_same_first_batch_and_start_from_the_same_shared_parameters(spec_of, data_root):
    baseline = spec_of()
    variant = spec_of(stream=FULL)
    data = DATASETS.get("synthetic").load(64, data_root)
    batches = [
        data.batch(0, batch_sequences=spec.batch_sequences, seq_len=spec.shape.seq_len, data_seed=spec.data_seed)
        for spec in (baseline, variant)
    ]  # fmt: skip
    assert (batches[0] == batches[1]).all()
    left = build(baseline.shape, baseline.stream, baseline.seed).state_dict()
    right = build(variant.shape, variant.stream, variant.seed).state_dict()
    assert set(left) < set(right)
    assert all(torch.equal(left[name], right[name]) for name in left)
    other_seed = build(baseline.shape, baseline.stream, 1).state_dict()
    assert any(not torch.equal(left[name], other_seed[name]) for name in left)


def test_l05_l18_micro_batches_change_neither_steps_nor_losses(reference, settings):
    spec, _, rows = reference
    split = run(spec, settings.model_copy(update={"micro_sequences": 4}))
    assert split.status is RunStatus.FINISHED
    own = rows_without_time(settings.runs / spec.spec_id)
    assert [row["lr"] for row in own] == [row["lr"] for row in rows]
    # fp32 sums in another order: seen differences of 1e-6 that training amplifies
    assert [row["train_loss"] for row in own] == pytest.approx([row["train_loss"] for row in rows], abs=2e-4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["run", "nowhere.json"], "nowhere.json"), (["run", "broken.json"], "broken.json"), (["ui", "--runs", "empty"], "no store")],
)  # fmt: skip
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, arguments, named):
    (tmp_path / "broken.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-m", "experiments", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert named in done.stderr and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_an_unwritable_folder_is_named(spec_of, settings, tmp_path):
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="cannot be written"):
        run(spec_of(), settings)


def test_records_are_plain_json_without_special_numbers(reference):
    _, record, _ = reference
    text = json.dumps(record.model_dump(mode="json"), allow_nan=False)
    assert json.loads(text)["status"] == "finished"


def test_a_validation_of_one_window_has_no_standard_error_and_finishes(spec_of, settings, monkeypatch):
    monkeypatch.setattr("experiments.run.VALIDATION_TOKENS", 32)
    record = run(spec_of(), settings)
    assert record.status is RunStatus.FINISHED and record.val_tokens == 32
    assert record.val_loss_se is None and read_record(settings.runs / record.spec_id) == record
