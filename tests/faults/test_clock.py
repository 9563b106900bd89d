"""A wall clock that jumps, as after a suspended laptop or a first answer of a time server: nothing depends on it."""

import math

import pytest

from experiments.record import read_record
from experiments.tracking import prepare_store, store_uri, sync
from tests.experiments.mirrored import all_runs, contents
from tests.faults.cells import outcome, run_cell
from tests.faults.conftest import tiny_spec
from tests.faults.sabotage import ClockJumps, SignalAt

DAY = 86400.0


@pytest.mark.faults
@pytest.mark.parametrize("seconds", [DAY, -DAY, -0.5])
def test_a_clock_that_jumps_in_mid_run_changes_no_result_and_no_duration(
    seconds, settings, undisturbed, tmp_path, monkeypatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings.runs.mkdir()
    prepare_store(store_uri(settings.runs), settings.runs)
    mirrored = settings.model_copy(update={"tracking": True})
    expected, whole = undisturbed(0)
    jump = ClockJumps(seconds, "dropping old checkpoints", 5)
    assert run_cell(tiny_spec(), mirrored, tmp_path / "cell", jump) == 0
    run_dir = settings.runs / tiny_spec().spec_id
    assert outcome(run_dir) == expected
    record = read_record(run_dir)
    assert 0 < record.wall_seconds < 10 * whole + 10
    (run,) = all_runs(settings.runs)
    lasted = (run.info.end_time - run.info.start_time) / 1000
    assert math.isclose(lasted, record.wall_seconds, abs_tol=0.01)
    before = contents(settings.runs)
    assert sync([run_dir], store_uri(settings.runs)) == 1
    assert contents(settings.runs) == before


@pytest.mark.faults
@pytest.mark.parametrize("seconds", [DAY, -DAY])
def test_a_clock_that_went_back_between_two_starts_changes_nothing(seconds, settings, undisturbed, tmp_path):
    assert run_cell(tiny_spec(), settings, tmp_path / "cell", SignalAt("validating", 5, 15)) == 130
    jump = ClockJumps(seconds, "reading the spec", 1)
    assert run_cell(tiny_spec(), settings, tmp_path / "cell", jump) == 0
    assert outcome(settings.runs / tiny_spec().spec_id) == undisturbed(0)[0]
