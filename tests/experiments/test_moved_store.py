"""Runs and their store copied elsewhere: found there, and nothing is written where they came from."""

import shutil
from pathlib import Path

from experiments.record import RunStatus
from experiments.tracking import store_uri, sync
from tests.experiments.mirrored import all_runs, contents, mirror_run, rows


def test_m05_m06_a_copied_store_is_rebuilt_in_its_new_place(runs, spec_of, tmp_path):
    mirror_run(spec_of(), runs, rows(1, 24), RunStatus.FINISHED)
    copied = tmp_path / "elsewhere" / "runs"
    shutil.copytree(runs, copied)
    assert [run.data.tags["spec_id"] for run in all_runs(copied)] == [spec_of().spec_id]
    shutil.rmtree(runs)
    for _ in range(2):
        assert sync([copied / spec_of().spec_id], store_uri(copied)) == 1
        (run,) = all_runs(copied)
        assert run.info.status == "FINISHED"
        place = Path(run.info.artifact_uri.removeprefix("file://"))
        assert place.is_relative_to(copied) and (place / "record.json").is_file()
    assert not runs.exists(), "nothing is made where the store was"
    before = contents(copied)
    sync([copied / spec_of().spec_id], store_uri(copied))
    assert contents(copied) == before
