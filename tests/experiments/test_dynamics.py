"""dynamics.parquet of a run: planned steps, whatever happens in between; training goes on as without it."""

import signal

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analysis.schema import DYNAMICS_COLUMNS, column_names
from attnres.errors import UserError
from attnres.initialise import build
from attnres.probes import NO_SOURCE, Probe, Reading
from attnres.stream_spec import StreamSpec
from attnres.streams.base import STREAMS
from experiments import mirror
from experiments.callbacks import Recorder
from experiments.checkpoint import load_latest
from experiments.dynamics import DYNAMICS_FILE, Dynamics, probe_steps, read_dynamics, summary
from experiments.history import read_rows
from experiments.optim import build_optimizer
from experiments.record import RunStatus
from experiments.run import run
from experiments.step import optimizer_step

FULL = StreamSpec(name="full_attnres")
DEPTH_KEYS = set(mirror.DEPTH)


def training_rows(run_dir) -> list[dict]:
    """The history without times and without what the probes added."""
    rows = read_rows(run_dir / "metrics.jsonl")
    return [{key: v for key, v in row.items() if key not in DEPTH_KEYS | {"seconds"}} for row in rows]


def weights_after(run_dir) -> dict[str, torch.Tensor]:
    return load_latest(run_dir / "checkpoints").state["model"]


@given(st.integers(1, 10**7), st.integers(0, 40))
def test_planned_steps_follow_from_the_number_of_steps(steps, probes):
    planned = probe_steps(steps, probes)
    assert list(planned) == sorted(set(planned))
    assert len(planned) <= probes
    assert all(1 <= step <= steps for step in planned)
    if probes:
        assert planned[-1] == steps
    if probes > 1:
        assert planned[0] == 1


def test_planned_steps_of_a_long_run():
    assert probe_steps(2**15, 16) == tuple(2**k for k in range(16))
    assert probe_steps(5, 16) == (1, 2, 3, 4, 5)
    assert probe_steps(1, 16) == (1,)


@pytest.mark.parametrize("name", STREAMS.names())
@pytest.mark.parametrize("changes", [{}, {"precision": "bf16"}])
def test_probes_change_nothing_in_training(spec_of, settings, tmp_path, name, changes):
    """History, validation and parameters bit for bit, in micro-batches of an odd size."""
    spec = spec_of(
        stream=StreamSpec(name=name, options=STREAMS.get(name).examples(spec_of().shape)[0]), **changes
    )
    records = []
    for probes in (0, 24):
        one = settings.model_copy(
            update={
                "runs": tmp_path / str(probes),
                "probes": probes,
                "micro_sequences": 5,
                "evaluations": 1,
                "checkpoint_steps": 23,
            }
        )
        records.append(run(spec, one))
    without, watched = (tmp_path / probes / spec.spec_id for probes in ("0", "24"))
    assert {record.status for record in records} == {RunStatus.FINISHED}
    assert records[0].val_loss == records[1].val_loss
    assert training_rows(without) == training_rows(watched)
    before, after = weights_after(without), weights_after(watched)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not (without / DYNAMICS_FILE).exists()
    assert len(read_dynamics(watched / DYNAMICS_FILE)) == len(probe_steps(24, 24))


@pytest.fixture(scope="module")
def reference(tmp_path_factory, data_root, spec_of):
    """An undisturbed run: (spec, its folder)."""
    from experiments.settings import Settings

    settings = Settings(runs=tmp_path_factory.mktemp("reference"), data=data_root, tracking=False)
    spec = spec_of(stream=FULL)
    assert run(spec, settings).status is RunStatus.FINISHED
    return spec, settings.runs / spec.spec_id


def test_the_file_follows_the_contract(reference):
    spec, run_dir = reference
    table = pd.read_parquet(run_dir / DYNAMICS_FILE)
    assert list(table.columns) == column_names(DYNAMICS_COLUMNS)
    kinds = {"int": "int64", "float": "float64", "str": "str"}
    assert [str(kind) for kind in table.dtypes] == [kinds[column.kind] for column in DYNAMICS_COLUMNS]
    assert sorted(table["step"].unique()) == list(probe_steps(spec.steps, 16))
    assert table["value"].notna().all()
    assert not table.duplicated(["step", "site", "kind", "source", "quantity"]).any()
    sizes = table.groupby("step").size()
    assert sizes.nunique() == 1, "every planned step has every layer"
    weights = table[table["quantity"] == "weight"].groupby(["step", "site"])["value"].sum()
    assert weights.to_numpy() == pytest.approx(1.0, abs=1e-6)
    named = {word.strip() for word in column_of("quantity").partition(":")[0].split(",")}
    assert set(table["quantity"]) == named


def column_of(name: str) -> str:
    return next(column.meaning for column in DYNAMICS_COLUMNS if column.name == name)


def test_the_first_step_is_the_initial_models_own(reference, data_root):
    """Step 1 is measured before its update: zero queries, and the gradients of the untrained model."""
    from experiments.data.base import DATASETS

    spec, run_dir = reference
    data = DATASETS.get("synthetic").load(64, data_root)
    tokens = torch.from_numpy(
        data.batch(
            0, batch_sequences=spec.batch_sequences, seq_len=spec.shape.seq_len, data_seed=spec.data_seed
        )
    )
    model = build(spec.shape, spec.stream, spec.seed)
    with Probe(model) as probe:
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    assert read_dynamics(run_dir / DYNAMICS_FILE)[1] == probe.readings()


@pytest.mark.parametrize("stop_at", [(5,), (1, 7, 8), (23,)])
def test_an_interrupted_run_ends_with_the_same_dynamics(reference, settings, monkeypatch, stop_at):
    spec, run_dir = reference
    original = Recorder.on_train_batch_end
    remaining = list(stop_at)

    def stop_here(self, trainer, module, *rest):
        if remaining and module.step == remaining[0]:
            remaining.pop(0)
            self.stop.received = signal.SIGTERM
        original(self, trainer, module, *rest)

    monkeypatch.setattr(Recorder, "on_train_batch_end", stop_here)
    statuses = [run(spec, settings).status for _ in range(len(stop_at) + 1)]
    assert statuses == [RunStatus.INTERRUPTED] * len(stop_at) + [RunStatus.FINISHED]
    own = settings.runs / spec.spec_id / DYNAMICS_FILE
    assert own.read_bytes() == (run_dir / DYNAMICS_FILE).read_bytes()


def test_a_run_killed_after_a_checkpoint_ends_with_the_same_dynamics(reference, settings, monkeypatch):
    """Killed at step 12 without a word, checkpoint at 10, readings of step 13 of the lost trajectory left over."""
    spec, run_dir = reference
    settings = settings.model_copy(update={"checkpoint_steps": 10})
    own = settings.runs / spec.spec_id / DYNAMICS_FILE

    class Killed(BaseException):
        pass

    original = Recorder.on_train_batch_end

    def killed(self, trainer, module, *rest):
        original(self, trainer, module, *rest)
        if module.step == 12:
            raise Killed

    monkeypatch.setattr(Recorder, "on_train_batch_end", killed)
    with pytest.raises(Killed):
        run(spec, settings)
    lost = read_dynamics(own) | {13: [Reading(0, "attention", NO_SOURCE, "hidden", 1.0)]}
    from experiments.dynamics import write_dynamics

    write_dynamics(own, lost)
    monkeypatch.setattr(Recorder, "on_train_batch_end", original)
    assert run(spec, settings).status is RunStatus.FINISHED
    assert own.read_bytes() == (run_dir / DYNAMICS_FILE).read_bytes()


def test_d04_a_run_with_a_layer_missing_fails_and_says_which(spec_of, settings, monkeypatch):
    original = Probe.add

    def deaf(self, quantity, site, totals, count):
        if (quantity, site) != ("gradient", 2):
            original(self, quantity, site, totals, count)

    monkeypatch.setattr(Probe, "add", deaf)
    spec = spec_of()
    record = run(spec, settings)
    assert (record.status, record.failed_at_step, record.val_loss) == (RunStatus.FAILED, 1, None)
    log = (settings.runs / spec.spec_id / "log.txt").read_text()
    assert "IncompleteDynamicsError: dynamics of step 1: gradient at site 2 was not measured" in log


def test_a_run_with_a_planned_step_missing_fails_and_says_which(spec_of, settings, monkeypatch):
    original = Dynamics.watch
    monkeypatch.setattr(
        Dynamics, "watch", lambda self, step, model: original(self, step + (step == 10), model)
    )
    spec = spec_of()
    record = run(spec, settings)
    assert (record.status, record.val_loss) == (RunStatus.FAILED, None)
    log = (settings.runs / spec.spec_id / "log.txt").read_text()
    assert "IncompleteDynamicsError: dynamics: no readings of planned step 10" in log


def test_a_run_resumed_without_its_readings_is_refused(reference, settings, monkeypatch):
    spec, _ = reference
    original = Recorder.on_train_batch_end

    def stop_here(self, trainer, module, *rest):
        self.stop.received = signal.SIGTERM if module.step == 9 else None
        original(self, trainer, module, *rest)

    monkeypatch.setattr(Recorder, "on_train_batch_end", stop_here)
    run(spec, settings)
    path = settings.runs / spec.spec_id / DYNAMICS_FILE
    with pytest.raises(UserError, match="set `probes` as before"):
        run(spec, settings.model_copy(update={"probes": 5}))
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(UserError, match="damaged"):
        run(spec, settings)
    path.unlink()
    with pytest.raises(UserError, match=r"planned are \[1, 2, 3, 4, 5, 7, 8\]"):
        run(spec, settings)
    path.write_bytes(whole)
    assert run(spec, settings).status is RunStatus.FINISHED


def test_a_diverged_run_keeps_what_was_seen(spec_of, settings, monkeypatch):
    import experiments.module as module

    step_of = module.optimizer_step

    def poisoned(model, *rest, **options):
        poisoned.calls += 1
        loss, norm = step_of(model, *rest, **options)
        return (float("inf"), norm) if poisoned.calls == 10 else (loss, norm)

    poisoned.calls = 0
    monkeypatch.setattr(module, "optimizer_step", poisoned)
    spec = spec_of()
    assert run(spec, settings).status is RunStatus.DIVERGED
    assert sorted(read_dynamics(settings.runs / spec.spec_id / DYNAMICS_FILE)) == [1, 2, 3, 4, 5, 7, 8]


@pytest.mark.parametrize("name", STREAMS.names())
def test_d01_gradients_are_those_before_clipping(spec_of, data_root, name):
    """A tiny clip value changes the update and not the readings; all parameters' squares sum to the norm's."""
    from experiments.data.base import DATASETS

    found = []
    for clip in (1e-6, 1e6):
        spec = spec_of(
            stream=StreamSpec(name=name, options=STREAMS.get(name).examples(spec_of().shape)[0]),
            grad_clip=clip,
        )
        data = DATASETS.get("synthetic").load(64, data_root)
        tokens = torch.from_numpy(
            data.batch(0, batch_sequences=spec.batch_sequences, seq_len=spec.shape.seq_len, data_seed=0)
        )
        model = build(spec.shape, spec.stream, 0)
        probe = Probe(model)
        _, norm = optimizer_step(
            model, build_optimizer(model, spec), tokens, spec, lr=0.1, micro_sequences=3, watch=probe
        )
        blocks = [one.value for one in probe.readings() if one.quantity == "parameter_gradient"]
        rest = [p.grad for name, p in model.named_parameters() if not name.startswith("sublayers.")]
        left = sum(gradient.double().square().sum().item() for gradient in rest)
        scale = max(1.0, norm / clip)
        assert sum(value**2 for value in blocks) + left * scale**2 == pytest.approx(norm**2, rel=1e-3)
        found.append((probe.readings(), norm))
    assert found[0] == found[1]


def test_few_numbers_go_to_the_history_and_to_mlflow(reference):
    spec, run_dir = reference
    rows = read_rows(run_dir / "metrics.jsonl")
    probed = [row for row in rows if "largest_output" in row]
    assert [row["step"] for row in probed] == list(probe_steps(spec.steps, 16))
    assert all(set(row) >= DEPTH_KEYS for row in probed)
    table = pd.read_parquet(run_dir / DYNAMICS_FILE)
    last = table[table["step"] == spec.steps]
    assert probed[-1]["largest_output"] == last[last["quantity"] == "output"]["value"].max()
    assert probed[0]["entropy_share"] == pytest.approx(1.0, abs=1e-6)
    assert 0 < probed[-1]["entropy_share"] < 1
    points, odd = mirror.points(rows, spec)
    assert odd == {}
    assert [p.step for p in points if p.key == "entropy_share"] == list(probe_steps(spec.steps, 16))
    long = spec.model_copy(update={"tokens": 100_000 * spec.train.batch_tokens})
    thin = [row for row in ({**rows[0], "step": step} for step in (1, 2, 7, 23)) if row]
    assert [p.step for p in mirror.points(thin, long)[0] if p.key == "largest_output"] == [1, 2, 7, 23]


def test_the_summary_of_a_stream_without_weights_has_no_entropy():
    readings = [
        Reading(0, "attention", NO_SOURCE, "output", 2.0),
        Reading(1, "mlp", NO_SOURCE, "output", 3.0),
        Reading(1, "mlp", NO_SOURCE, "gradient", 0.5),
        Reading(1, "mlp", 0, "weight", 1.0),
    ]
    assert summary(readings) == {"largest_output": 3.0, "largest_gradient": 0.5}
