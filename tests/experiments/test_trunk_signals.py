"""SIGTERM and SIGKILL to the processes of a trunk and of a branch: the branch ends as if it had trained alone."""

import signal

import pytest

from experiments.record import RunStatus
from experiments.run import run
from experiments.trunk import trunk_of
from tests.experiments.test_run import start, wait_for_step
from tests.experiments.test_trunk import branch_specs, for_branch, for_trunk, result_of


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_to_the_process_of_a_trunk_and_of_a_branch_change_nothing(
    spec_of, settings, tmp_path, number
):
    branches = branch_specs(spec_of, steps=(100, 300))
    trunk, last = trunk_of(branches), branches[-1]
    undisturbed = settings.model_copy(update={"runs": tmp_path / "undisturbed", "evaluations": 1})
    run(last, undisturbed)
    settings = settings.model_copy(update={"checkpoint_steps": 7, "evaluations": 1})
    for spec, own, step in (
        (trunk, for_trunk(settings, branches), 90), (last, for_branch(settings, trunk), 250),
    ):  # fmt: skip
        process = start(spec, own, tmp_path)
        wait_for_step(settings.runs / spec.spec_id, step, process)
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == (130 if number is signal.SIGTERM else -9)
        record = run(spec, own)
        assert (record.status, record.attempts) == (RunStatus.FINISHED, 2)
    assert result_of(settings.runs / last.spec_id) == result_of(undisturbed.runs / last.spec_id)
    assert record.parent_id == trunk.spec_id, "also of an attempt that had its own checkpoint"
