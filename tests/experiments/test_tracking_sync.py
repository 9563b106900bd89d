"""`sync` makes the store equal to the run directories, whatever happened to either."""

import pytest
from filelock import FileLock

from attnres.errors import UserError
from experiments.record import RunStatus
from experiments.tracking import store_uri, sync
from tests.experiments.mirrored import all_runs, client, contents, finish_dir, killed_run, make_dir


def test_m07_a_killed_run_is_told_apart_from_a_running_one(runs, spec_of):
    spec = spec_of()
    killed_run(spec, runs, 9)
    assert all_runs(runs)[0].info.status == "RUNNING", "as MLflow alone would leave it for ever"
    with FileLock(runs / spec.spec_id / "lock"):
        assert sync([runs / spec.spec_id], store_uri(runs)) == 1
        assert all_runs(runs)[0].info.status == "RUNNING", "a living process holds the lock"
    sync([runs / spec.spec_id], store_uri(runs))
    assert [run.info.status for run in all_runs(runs)] == ["KILLED"]


def test_sync_rebuilds_a_lost_store_twice_with_the_same_result(runs, spec_of):
    folders = [
        finish_dir(spec_of(seed=seed), runs, status)
        for seed, status in enumerate((RunStatus.FINISHED, RunStatus.DIVERGED, RunStatus.INTERRUPTED))
    ]
    (runs / "not_a_run").mkdir()
    assert sync([*folders, runs / "not_a_run"], store_uri(runs), grid="demo") == 3
    first = contents(runs)
    assert len(first) == 3
    assert sync(folders, store_uri(runs), grid="demo") == 3
    assert contents(runs) == first
    started = {run.info.start_time for run in all_runs(runs)}
    assert started == {1767323045000}, "2026-01-02T03:04:05Z, from the record"
    assert {run.info.end_time for run in all_runs(runs)} == {1767323045000 + 2400}


def test_sync_brings_a_deleted_run_back_as_a_new_one(runs, spec_of):
    run_dir = finish_dir(spec_of(), runs)
    sync([run_dir], store_uri(runs))
    client(runs).delete_run(all_runs(runs)[0].info.run_id)
    sync([run_dir], store_uri(runs))
    assert len(all_runs(runs)) == 1


def test_a_spec_that_cannot_be_read_is_named(runs, spec_of):
    run_dir = make_dir(spec_of(), runs)
    (run_dir / "spec.json").write_text("{}")
    with pytest.raises(UserError, match=r"spec\.json: .*not of this version: move"):
        sync([run_dir], store_uri(runs))


def test_a_damaged_run_is_named_and_keeps_no_other_from_the_store(runs, spec_of):
    damaged, whole = finish_dir(spec_of(), runs), finish_dir(spec_of(seed=1), runs)
    (damaged / "record.json").write_text("{")
    with pytest.raises(UserError, match=rf"in the store: 1 of 2 runs; {damaged}/record\.json: "):
        sync([damaged, whole], store_uri(runs))
    assert [run.data.tags["spec_id"] for run in all_runs(runs)] == [whole.name]
