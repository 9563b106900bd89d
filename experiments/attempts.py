"""attempts.json: how often a run was started, and how those starts ended that failed.

A start that was killed leaves no word here and no record: that it began is all that is known.
"""

import errno
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field

from attnres.errors import UserError, one_line
from attnres.files import write_json
from attnres.json_files import read_model

ATTEMPTS_FILE = "attempts.json"


class Cause(StrEnum):
    """Why a start failed, as far as it matters to whoever may start the run again."""

    MEMORY = "memory"
    """No memory was left."""
    INPUT_OUTPUT = "input_output"
    """The file system or the network failed, in a way that may pass."""
    REFUSED = "refused"
    """A person must mend something: the message says what."""
    EXCEPTION = "exception"
    """Anything else that was raised: a bug, or a device that failed."""


class Failure(BaseModel):
    """How one start failed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: int = Field(ge=1)
    step: int = Field(ge=1)
    """Step that was not completed."""
    cause: Cause
    error: str
    """Its type and message, one line."""

    def repeats(self, earlier: "Failure") -> bool:
        """Whether the same thing happened at the same step before: starting again will not help."""
        return (self.step, self.cause, self.error) == (earlier.step, earlier.cause, earlier.error)


class Attempts(BaseModel):
    """Starts of a run; when the first was (ISO 8601, UTC); how some ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempts: int = Field(default=0, ge=0)
    started_at: str = ""
    failures: tuple[Failure, ...] = ()

    @property
    def last_failure(self) -> Failure | None:
        """How the newest start failed; None if it did not, or could not say."""
        newest = self.failures[-1] if self.failures else None
        return newest if newest is not None and newest.attempt == self.attempts else None


def read_attempts(run_dir: Path) -> Attempts:
    """The starts of the run in ``run_dir``; none where there is no file.

    Raises:
        UserError: the file is damaged.
    """
    path = run_dir / ATTEMPTS_FILE
    if not path.exists():
        return Attempts()
    return read_model(path, Attempts, "delete it: attempts are then counted from 1")


def count_attempt(run_dir: Path) -> Attempts:
    """Count one more start.

    Raises:
        UserError: the file that counts them is damaged.
    """
    before = read_attempts(run_dir)
    counted = Attempts(
        attempts=before.attempts + 1,
        started_at=before.started_at or datetime.now(UTC).isoformat(timespec="seconds"),
        failures=before.failures,
    )
    write_json(run_dir / ATTEMPTS_FILE, counted.model_dump(mode="json"))
    return counted


def note_failure(run_dir: Path, step: int, error: Exception) -> None:
    """Add how the newest start failed: with ``error``, in ``step``."""
    before = read_attempts(run_dir)
    failure = Failure(
        attempt=before.attempts,
        step=step,
        cause=cause_of(error),
        error=f"{type(error).__name__}: {one_line(error)}",
    )
    noted = before.model_copy(update={"failures": (*before.failures, failure)})
    write_json(run_dir / ATTEMPTS_FILE, noted.model_dump(mode="json"))


_FOR_A_PERSON = (
    errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS
)  # fmt: skip
"""Nothing of the system's passes by itself: a folder is missing, in the way, or may not be written."""


def cause_of(error: BaseException) -> Cause:
    """What kind of failure ``error`` is; of a `UserError` that a system error lies under, that one's."""
    beneath = error.__cause__
    if isinstance(error, UserError) and isinstance(beneath, OSError):
        return cause_of(beneath)
    if isinstance(error, UserError):
        return Cause.REFUSED
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error):
        return Cause.MEMORY
    if isinstance(error, OSError):
        if error.errno == errno.ENOMEM:
            return Cause.MEMORY
        return Cause.REFUSED if error.errno in _FOR_A_PERSON else Cause.INPUT_OUTPUT
    return Cause.EXCEPTION
