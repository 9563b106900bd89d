"""Failures that may pass are met with another start, a stated number of times; the others never."""

import errno
import signal
from pathlib import Path

import pytest
import torch

from attnres.errors import UserError
from experiments.attempts import (
    Cause,
    Failure,
    cause_of,
    count_attempt,
    note_failure,
    read_attempts,
)
from experiments.record import RunStatus, read_record
from experiments.run_folder import SPEC_FILE
from experiments.settings import Settings
from sweeps.grid import load_grid
from sweeps.launch import local
from sweeps.launch.base import Ended, Retrying
from sweeps.launch.retry import PAUSE_SECONDS, AttemptEnd, Retries, attempt_end, may_pass
from tests.experiments.mirrored import record_of


def failed(cause: Cause, step: int = 8, error: str = "it") -> Failure:
    return Failure(attempt=1, step=step, cause=cause, error=error)


KILLED = AttemptEnd(None, -9, began=True, failure=None)


@pytest.mark.parametrize(
    ("end", "again"),
    [
        (AttemptEnd(RunStatus.FINISHED, 0, True, None), False),
        (AttemptEnd(RunStatus.DIVERGED, 1, True, None), False),
        (AttemptEnd(RunStatus.INTERRUPTED, 130, True, None), True),  # somebody's signal: not the sweep's
        (KILLED, True),
        (AttemptEnd(None, -15, False, None), True),  # killed while it imported
        (AttemptEnd(None, 2, True, None), True),  # could write neither record nor failure
        (AttemptEnd(None, 2, False, None), False),  # refused: spec, data, lock
        (AttemptEnd(RunStatus.FAILED, 2, False, None), False),  # refused, beside the record of an earlier start
        (AttemptEnd(RunStatus.FAILED, 1, True, failed(Cause.MEMORY)), True),
        (AttemptEnd(RunStatus.FAILED, 1, True, failed(Cause.INPUT_OUTPUT)), True),
        (AttemptEnd(RunStatus.FAILED, 1, True, failed(Cause.EXCEPTION)), True),
        (AttemptEnd(RunStatus.FAILED, 2, True, failed(Cause.REFUSED)), False),
        *[(AttemptEnd(RunStatus.FAILED, 1, True, failed(cause), [failed(cause)]), False)
          for cause in (Cause.MEMORY, Cause.INPUT_OUTPUT, Cause.EXCEPTION)],
        (AttemptEnd(RunStatus.FAILED, 1, True, failed(Cause.MEMORY), [failed(Cause.MEMORY, step=7)]), True),
        (AttemptEnd(RunStatus.FAILED, 1, True, failed(Cause.EXCEPTION, error="else"), [failed(Cause.EXCEPTION)]), True),
    ],
)  # fmt: skip
def test_which_ends_are_worth_another_start(end, again):
    assert may_pass(end) is again


def beneath(cause: Exception) -> UserError:
    try:
        raise UserError("x.ckpt: cannot be written") from cause
    except UserError as error:
        return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MemoryError(), Cause.MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory"), Cause.MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Cause.MEMORY),
        (OSError(errno.ENOSPC, "No space left on device"), Cause.INPUT_OUTPUT),
        (OSError(errno.ESTALE, "Stale file handle"), Cause.INPUT_OUTPUT),
        (ConnectionResetError(errno.ECONNRESET, "reset"), Cause.INPUT_OUTPUT),
        (TimeoutError("late"), Cause.INPUT_OUTPUT),
        (beneath(OSError(errno.ENOSPC, "full")), Cause.INPUT_OUTPUT),
        (beneath(IsADirectoryError(errno.EISDIR, "Is a directory")), Cause.REFUSED),
        (PermissionError(errno.EACCES, "denied"), Cause.REFUSED),
        (OSError(errno.EROFS, "Read-only file system"), Cause.REFUSED),
        (UserError("lr 0: must be positive"), Cause.REFUSED),
        (ZeroDivisionError(), Cause.EXCEPTION),
    ],
)
def test_what_lies_under_an_error_decides(error, cause):
    assert cause_of(error) is cause


def test_memory_that_torch_cannot_have_is_out_of_memory():
    """What the CPU's allocator really raises, for more than any machine has."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**56, dtype=torch.uint8)
    assert cause_of(caught.value) is Cause.MEMORY


def test_every_cell_gets_its_retries_and_no_more_after_a_pause_that_doubles():
    now = [100.0]
    retries = Retries(2, clock=lambda: now[0])
    assert retries.due("a") and retries.take("a", KILLED) == 1
    assert not retries.due("a") and retries.due("b")
    now[0] += PAUSE_SECONDS
    assert retries.due("a") and retries.take("a", KILLED) == 2
    now[0] += PAUSE_SECONDS
    assert not retries.due("a")
    now[0] += PAUSE_SECONDS
    assert retries.due("a") and retries.take("a", KILLED) is None
    assert retries.take("b", KILLED) == 1
    assert Retries(0).take("a", KILLED) is None


def test_failures_are_kept_with_the_start_they_belong_to(tmp_path):
    before = read_attempts(tmp_path)
    count_attempt(tmp_path)
    note_failure(tmp_path, 8, ZeroDivisionError("division\nby zero"))
    first = read_attempts(tmp_path)
    assert first.last_failure == failed(Cause.EXCEPTION, error="ZeroDivisionError: division by zero")
    assert attempt_end(RunStatus.FAILED, 1, before, first).failure == first.last_failure
    count_attempt(tmp_path)
    second = read_attempts(tmp_path)
    assert second.attempts == 2 and second.last_failure is None and second.started_at == first.started_at
    end = attempt_end(None, -9, first, second)
    assert (end.began, end.failure, end.earlier) == (True, None, first.failures)


# --- the pool ---------------------------------------------------------------------------------------


class Scripted:
    """Takes the place of a cell's process: every start of a cell does the next thing of its script."""

    def __init__(self, runs: Path, scripts: dict[str, list]) -> None:
        self.runs, self.scripts, self.starts = runs, scripts, []

    def __call__(self, target, args, name) -> "Scripted.Process":  # noqa: ARG002
        run_dir = Path(args[0])
        self.starts.append(run_dir.name)
        return Scripted.Process(run_dir, self.scripts[run_dir.name].pop(0))

    class Process:
        def __init__(self, run_dir: Path, act) -> None:
            self.run_dir, self.act, self.exitcode = run_dir, act, None

        def start(self) -> None:
            count_attempt(self.run_dir)
            self.exitcode = self.act(self.run_dir)

        def is_alive(self) -> bool:
            return False

        def join(self, timeout: float | None = None) -> None: ...


def finish(run_dir: Path) -> int:
    from experiments.record import write_record
    from experiments.spec import RunSpec

    spec = RunSpec.model_validate_json((run_dir / SPEC_FILE).read_text())
    attempts = read_attempts(run_dir).attempts
    write_record(run_dir, record_of(spec, RunStatus.FINISHED, stream_options="{}", attempts=attempts))
    return 0


def be_killed(run_dir: Path) -> int:  # noqa: ARG001
    return -signal.SIGKILL


def divide(run_dir: Path) -> int:
    note_failure(run_dir, 8, ZeroDivisionError("by zero"))
    return 1


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Run scripted cells through the pool -> (how often each started, what was shown)."""
    monkeypatch.setattr("sweeps.launch.retry.PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(local, "POLL_SECONDS", 0.005)
    cells = load_grid("smoke").cells[:3]

    def run(*scripts: list, retries: int, fail_fast: bool = False):
        shown: list = []
        settings = Settings(runs=tmp_path / "runs", data=tmp_path, tracking=False)
        ids = [cell.spec.spec_id for cell in cells[: len(scripts)]]
        scripted = Scripted(settings.runs, dict(zip(ids, map(list, scripts), strict=True)))
        pool = local._Pool(cells[: len(scripts)], settings, shown.append, Retries(retries))
        monkeypatch.setattr(pool.context, "Process", scripted)
        assert pool.execute(1, fail_fast)
        return [scripted.starts.count(spec_id) for spec_id in ids], shown, settings.runs

    return run


def ends(shown: list) -> list[str]:
    return [event.status for event in shown if isinstance(event, Ended)]


def numbers(shown: list) -> list[tuple[int, int]]:
    return [(event.number, event.most) for event in shown if isinstance(event, Retrying)]


def test_a_killed_cell_is_started_again_and_its_record_counts_the_starts(sweep):
    starts, shown, runs = sweep([be_killed, be_killed, finish], [finish], retries=2)
    assert starts == [3, 1] and numbers(shown) == [(1, 2), (2, 2)]
    assert ends(shown) == ["finished", "finished"]
    first = load_grid("smoke").cells[0].spec.spec_id
    assert read_record(runs / first).attempts == 3
    told = next(event.message for event in shown if isinstance(event, Retrying))
    assert told.startswith("killed by SIGKILL (the kernel does so where memory runs out)")


def test_the_cap_holds_and_the_cell_is_failed_once(sweep):
    starts, shown, _ = sweep([be_killed] * 5, [finish], retries=2)
    assert starts == [3, 1] and sorted(ends(shown)) == ["failed", "finished"]


def test_the_same_exception_at_the_same_step_ends_the_cell(sweep):
    starts, shown, _ = sweep([divide] * 5, retries=4)
    assert starts == [2] and numbers(shown) == [(1, 4)] and ends(shown) == ["failed"]


def test_fail_fast_waits_for_the_last_retry(sweep):
    starts, shown, _ = sweep([be_killed, finish], [be_killed] * 3, [finish], retries=1, fail_fast=True)
    order = sorted(range(3), key=lambda index: -load_grid("smoke").cells[index].compute)
    assert starts[1] == 2, "failed only after its retry"
    assert ends(shown).count("failed") == 1
    assert starts[2] == (1 if order.index(2) < order.index(1) else 0)


def test_none_are_made_where_none_are_allowed(sweep):
    starts, shown, _ = sweep([be_killed], retries=0)
    assert starts == [1] and numbers(shown) == [] and ends(shown) == ["failed"]
