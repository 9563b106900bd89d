"""Branches of a trunk are, bit for bit, the runs that train alone; whatever kills either."""

import json
import signal
from pathlib import Path

import pytest
import torch

from attnres.errors import UserError
from attnres.stream_spec import StreamSpec
from experiments.callbacks import Recorder
from experiments.checkpoint import BRANCH_POINTS, CHECKPOINTS, load_latest
from experiments.dynamics import DYNAMICS_FILE, probe_steps, read_dynamics
from experiments.history import read_rows
from experiments.record import RunStatus
from experiments.run import run
from experiments.settings import Branch, Settings
from experiments.spec import RunSpec
from experiments.trunk import first_lacking, needed_checkpoints, trunk_of
from experiments.validation import evaluation_steps
from tests.experiments.test_run import rows_without_time

ARMS = [
    StreamSpec(name="additive"),
    StreamSpec(name="block_attnres", options={"num_blocks": 2}),
    StreamSpec(name="full_attnres"),
]
STEPS = (10, 20, 40)
"""Budgets a factor of two apart, in steps of 512 tokens."""

OWN = {
    "run_id",
    "parent_id",
    "attempts",
    "wall_seconds",
    "tokens_per_second",
    "peak_memory_bytes",
    "started_at",
}
"""Columns of a record that say how a run was executed."""


def branch_specs(spec_of, stream=ARMS[0], steps=STEPS) -> list[RunSpec]:
    return [
        spec_of(
            stream=stream, schedule="wsd", tokens=n * 512, budget=n * 1e7, cooldown=max(1, n // 5), warmup=4
        )
        for n in steps
    ]


def for_trunk(settings: Settings, branches) -> Settings:
    """What the launcher of a sweep tells a trunk."""
    asked = tuple(Branch(spec_id=b.spec_id, step=b.stable_steps, steps=b.steps) for b in branches)
    return settings.model_copy(update={"branches": asked})


def for_branch(settings: Settings, trunk: RunSpec) -> Settings:
    return settings.model_copy(update={"parent": trunk.spec_id})


def result_of(run_dir: Path) -> dict:
    """All that a run leaves, but for how and when it was executed."""
    record = json.loads((run_dir / "record.json").read_text())
    return {
        "rows": rows_without_time(run_dir),
        "dynamics": (run_dir / DYNAMICS_FILE).read_bytes(),
        "record": {name: value for name, value in record.items() if name not in OWN},
    }


@pytest.fixture(scope="module", autouse=True)
def few_windows():
    """An evaluation of all validation tokens takes as long as 500 of these steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.run.VALIDATION_TOKENS", 4096)
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data_root, spec_of):
    """What every arm's branches are when trained from step 1: spec_id -> result."""
    settings = Settings(runs=tmp_path_factory.mktemp("alone"), data=data_root, tracking=False)
    results = {}
    for stream in ARMS:
        for spec in branch_specs(spec_of, stream):
            assert run(spec, settings).status is RunStatus.FINISHED
            results[spec.spec_id] = result_of(settings.runs / spec.spec_id)
            assert json.loads((settings.runs / spec.spec_id / "record.json").read_text())["parent_id"] == ""
    return results


@pytest.mark.parametrize("stream", ARMS, ids=lambda stream: stream.name)
def test_a_branch_is_bitwise_the_run_that_trains_alone(spec_of, settings, alone, stream):
    branches = branch_specs(spec_of, stream)
    trunk = trunk_of(branches)
    trained = run(trunk, for_trunk(settings, branches))
    assert (trained.status, trained.steps, trained.parent_id) == (RunStatus.FINISHED, 32, "")
    for spec in branches:
        record = run(spec, for_branch(settings, trunk))
        assert record.status is RunStatus.FINISHED and record.parent_id == trunk.spec_id
        assert result_of(settings.runs / spec.spec_id) == alone[spec.spec_id]
        rows = read_rows(settings.runs / spec.spec_id / "metrics.jsonl")
        assert rows[spec.stable_steps]["seconds"] > rows[spec.stable_steps - 1]["seconds"] > 0
        assert record.wall_seconds >= rows[-1]["seconds"], "the trunk's share of the time is counted"
        assert rows[-1]["lr"] == spec.train.lr * spec.train.lr_floor
    log = (settings.runs / branches[-1].spec_id / "log.txt").read_text()
    assert "continues from step 32 of 40" in log, "only the cooldown is trained"


def test_a_trunk_leaves_what_its_branches_would_have_recorded_and_no_more(spec_of, settings):
    branches = branch_specs(spec_of)
    trunk = trunk_of(branches)
    run(trunk, for_trunk(settings, branches))
    run_dir = settings.runs / trunk.spec_id
    evaluated = {row["step"] for row in read_rows(run_dir / "metrics.jsonl") if "val_loss" in row}
    points = {b.stable_steps for b in branches}
    wanted = {s for b in branches for s in evaluation_steps(b.steps, 4) if s <= b.stable_steps}
    assert evaluated == wanted | {trunk.steps}
    assert set(read_dynamics(run_dir / DYNAMICS_FILE)) == {
        s for b in branches for s in probe_steps(b.steps, 16) if s <= b.stable_steps
    }
    kept = sorted(int(path.name.split("-")[1]) for path in (run_dir / BRANCH_POINTS).iterdir())
    assert kept == sorted(points) == [8, 16, 32]
    assert len(needed_checkpoints(run_dir)) == 3
    run(branches[1], for_branch(settings, trunk))
    assert sorted(path.name.split("-")[1] for path in needed_checkpoints(run_dir)) == ["00000008", "00000032"]


def stop_after(monkeypatch, *steps: int) -> None:
    """SIGTERM seen at the end of each of ``steps``, once."""
    original, remaining = Recorder.on_train_batch_end, list(steps)

    def stop_here(self, trainer, module, *rest):
        if remaining and module.step == remaining[0]:
            remaining.pop(0)
            self.stop.received = signal.SIGTERM
        original(self, trainer, module, *rest)

    monkeypatch.setattr(Recorder, "on_train_batch_end", stop_here)


@pytest.mark.parametrize(
    ("trunk_stops", "branch_stops"), [((5,), (33,)), ((8, 9), (35, 39)), ((15, 16, 17, 31), (36,))]
)
def test_interruptions_of_trunk_and_branch_change_nothing(
    spec_of, settings, alone, monkeypatch, trunk_stops, branch_stops
):
    """Before, at and after branch points; the branch goes on from its own checkpoints."""
    branches = branch_specs(spec_of, ARMS[2])
    trunk, last = trunk_of(branches), branches[-1]
    stop_after(monkeypatch, *trunk_stops)
    statuses = [run(trunk, for_trunk(settings, branches)).status for _ in (*trunk_stops, None)]
    assert statuses == [RunStatus.INTERRUPTED] * len(trunk_stops) + [RunStatus.FINISHED]
    stop_after(monkeypatch, *branch_stops)
    statuses = [run(last, for_branch(settings, trunk)).status for _ in (*branch_stops, None)]
    assert statuses == [RunStatus.INTERRUPTED] * len(branch_stops) + [RunStatus.FINISHED]
    assert result_of(settings.runs / last.spec_id) == alone[last.spec_id]
    run(branches[0], for_branch(settings, trunk))
    assert result_of(settings.runs / branches[0].spec_id) == alone[branches[0].spec_id]


def test_a_branch_killed_before_its_first_checkpoint_branches_again(spec_of, settings, alone, monkeypatch):
    branches = branch_specs(spec_of)
    trunk, last = trunk_of(branches), branches[-1]
    run(trunk, for_trunk(settings, branches))
    original = Recorder.on_train_batch_end

    def die(self, trainer, module, *rest):
        original(self, trainer, module, *rest)
        if module.step == 34:
            raise KeyboardInterrupt  # nothing is written any more, as after a kill

    monkeypatch.setattr(Recorder, "on_train_batch_end", die)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(last, for_branch(settings, trunk))
    monkeypatch.setattr(Recorder, "on_train_batch_end", original)
    assert load_latest(settings.runs / last.spec_id / CHECKPOINTS) is None
    assert len(read_rows(settings.runs / last.spec_id / "metrics.jsonl")) == 34
    assert run(last, settings).parent_id == trunk.spec_id, "its folder knows its trunk, the settings need not"
    assert result_of(settings.runs / last.spec_id) == alone[last.spec_id]


def test_a_trunk_trains_again_only_what_is_lacking_and_then_serves(spec_of, settings, alone):
    branches = branch_specs(spec_of)
    trunk = trunk_of(branches)
    own = for_trunk(settings, branches)
    run(trunk, own)
    run_dir = settings.runs / trunk.spec_id
    first = result_of(run_dir)
    stamp = (run_dir / "record.json").stat().st_mtime_ns
    assert run(trunk, own).attempts == 1 and (run_dir / "record.json").stat().st_mtime_ns == stamp
    (kept,) = (run_dir / BRANCH_POINTS).glob("step-00000016-*")
    data = bytearray(kept.read_bytes())
    data[1000] ^= 1
    kept.write_bytes(data)
    assert first_lacking(run_dir, settings, own.branches) == 16
    with pytest.raises(
        UserError, match=f"trunk {trunk.spec_id}: no intact checkpoint of step 16 in .*train the trunk"
    ):
        run(branches[1], for_branch(settings, trunk))
    assert run(trunk, own).attempts == 2
    assert "continues from step 8 of 32" in (run_dir / "log.txt").read_text()
    assert result_of(run_dir) == first
    for spec in branches:
        run(spec, for_branch(settings, trunk))
        assert result_of(settings.runs / spec.spec_id) == alone[spec.spec_id]
    kept.unlink()
    assert run(trunk, own).attempts == 2, "every branch is done: nothing is lacking"


def test_a_further_branch_is_remembered_beside_the_first_ones(spec_of, settings, alone):
    """Two grids may share a trunk: what one asked for stays when the other asks for more."""
    branches = branch_specs(spec_of)
    trunk = trunk_of(branches)
    run(trunk, for_trunk(settings, [branches[0], branches[2]]))
    record = run(trunk, for_trunk(settings, branches[1:]))
    assert record.attempts == 2
    for spec in branches:
        run(spec, for_branch(settings, trunk))
        assert result_of(settings.runs / spec.spec_id) == alone[spec.spec_id]


def test_a_trunk_that_diverges_keeps_what_it_left_before(spec_of, settings, monkeypatch):
    import experiments.module as module

    step_of, calls = module.optimizer_step, []

    def poisoned(model, *rest, **options):
        calls.append(1)
        loss, norm = step_of(model, *rest, **options)
        return (float("inf"), norm) if len(calls) == 20 else (loss, norm)

    monkeypatch.setattr(module, "optimizer_step", poisoned)
    branches = branch_specs(spec_of)
    trunk, own = trunk_of(branches), for_trunk(settings, branches)
    record = run(trunk, own)
    assert (record.status, record.failed_at_step) == (RunStatus.DIVERGED, 20)
    assert run(trunk, own) == record, "a diverged trunk would only diverge again"
    assert run(branches[1], for_branch(settings, trunk)).status is RunStatus.FINISHED
    with pytest.raises(UserError, match="no intact checkpoint of step 32"):
        run(branches[2], for_branch(settings, trunk))


def test_whatever_is_no_trunk_of_the_run_is_refused_by_name(spec_of, settings):
    branches = branch_specs(spec_of)
    trunk = trunk_of(branches)
    with pytest.raises(UserError, match=f"trunk {trunk.spec_id}: not in .*; train the trunk"):
        run(branches[0], for_branch(settings, trunk))
    run(trunk, for_trunk(settings, branches))
    other = branch_specs(spec_of, ARMS[2])[0]
    with pytest.raises(
        UserError, match=f"trunk {trunk.spec_id}: is none of run {other.spec_id}: stream differs"
    ):
        run(other, for_branch(settings, trunk))
    finished = spec_of()
    run(finished, settings)
    with pytest.raises(UserError, match="schedule differs"):
        run(branches[0], for_branch(settings, finished))
    with pytest.raises(UserError, match="schedule cosine is no trunk's"):
        run(spec_of(lr=1e-3), for_trunk(settings, branches))
    more = settings.model_copy(update={"evaluations": 5})
    with pytest.raises(UserError, match="has not recorded step 4 as this run needs it; train the trunk"):
        run(branches[0], for_branch(more, trunk))


def test_budgets_that_share_no_steps_have_no_trunk(spec_of):
    one, other = branch_specs(spec_of)[:2]
    longer = other.model_copy(update={"train": other.train.model_copy(update={"warmup": 5})})
    with pytest.raises(UserError, match="recipe test: warmup differs between budgets of one size"):
        trunk_of([one, longer])
    with pytest.raises(UserError, match="schedule cosine has no trunk"):
        trunk_of([spec_of()])


def test_a_branch_point_s_checkpoint_is_that_step_s_state(spec_of, settings, monkeypatch):
    """Kept and newest checkpoints are written by one function: the same tensors."""
    branches = branch_specs(spec_of)
    trunk = trunk_of(branches)
    run(trunk, for_trunk(settings, branches))
    kept = load_latest(settings.runs / trunk.spec_id / BRANCH_POINTS, last=16)
    stop_after(monkeypatch, 16)
    run(branches[2], settings)
    own = load_latest(settings.runs / branches[2].spec_id / CHECKPOINTS)
    assert kept.step == own.step == 16
    assert all(
        torch.equal(kept.state["model"][name], own.state["model"][name]) for name in own.state["model"]
    )
