"""Runs told to MLflow: live from a thread beside the training, and afterwards by `sync`.

A store that cannot be reached never stops or slows a run: rows wait in memory, the directory has them
anyway, and `sync` brings the store up to date.
"""

import logging
import math
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from attnres.errors import UserError, one_line
from attnres.json_files import read_model
from experiments.history import Row
from experiments.mlflow_store import MirroredRun, Store
from experiments.record import RunStatus, read_record
from experiments.run_folder import SPEC_FILE, is_running
from experiments.settings import Settings
from experiments.spec import RunSpec

FLUSH_SECONDS = 5.0
FIRST_SECONDS = 10.0
"""The record waits this long for the run's id in the store."""
CLOSE_SECONDS = 60.0
"""A run that ends waits this long for a store that it had reached, then leaves the rest to `sync`: a server
that is started anew is back by then."""
STOP_SECONDS = 10.0
"""A run that was asked to stop waits this long: Slurm kills it 30 s after its signal."""
AGAIN_SECONDS = 1.0
"""Between two attempts at the very end."""

LONGEST_REASON = 240
"""Characters of a store's error that are told."""

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """What a run tells as it goes."""

    @property
    def run_id(self) -> str:
        """MLflow's id of the run; empty if the store cannot be reached."""

    def log(self, row: Row) -> None:
        """A row of metrics.jsonl."""

    def close(self, status: RunStatus) -> None:
        """The run has ended; its record is written."""


class NoTracker:
    """Tells nobody."""

    run_id = ""

    def log(self, row: Row) -> None:
        """Nothing."""

    def close(self, status: RunStatus) -> None:
        """Nothing."""


def open_tracker(spec: RunSpec, run_dir: Path, settings: Settings) -> Tracker:
    """The tracker of a run: MLflow's, or none where tracking is off."""
    if not settings.tracking:
        return NoTracker()
    return MlflowTracker(spec, run_dir, settings, store_uri(settings.runs))


def store_uri(runs: Path) -> str:
    """MLFLOW_TRACKING_URI where it is set, else a SQLite file beside the run directories."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs.resolve()}/mlflow.db"


def prepare_store(uri: str, runs: Path) -> None:
    """Create the store's schema and experiment if they are missing; any number of processes may call it.

    Raises:
        UserError: the store cannot be reached or written.
    """
    try:
        Store(uri, runs)
    except Exception as error:  # MLflow, SQLAlchemy, HTTP and the file system each raise their own
        raise UserError(
            f"{without_password(uri)}: the MLflow store cannot be opened ({_short(error)}); check "
            "MLFLOW_TRACKING_URI or the folder, or go without (--no-tracking) and use `sweeps sync` later"
        ) from error


def without_password(uri: str) -> str:
    """``uri`` as it may stand on a terminal and in a log."""
    return re.sub(r"//[^/@]*@", "//***@", uri)


def _short(error: Exception) -> str:
    """The beginning of what a store says: some raise pages."""
    text = without_password(one_line(error))
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"


def sync(run_dirs: Sequence[Path], uri: str, grid: str = "") -> int:
    """Make the store equal to ``run_dirs`` -> number of runs in it. Twice gives the same store.

    Runs that a living process works on are left to it. A run without a record that nobody works on was
    killed, and is marked so. One whose files are damaged does not keep the others from the store.

    Raises:
        UserError: the store cannot be reached; or, after all others are in it, files of runs are damaged.
    """
    if not run_dirs:
        return 0
    runs = run_dirs[0].parent
    prepare_store(uri, runs)
    store = Store(uri, runs)
    count, problems = 0, []
    for run_dir in run_dirs:
        try:
            count += _sync_run(store, run_dir, grid)
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError(f"in the store: {count} of {count + len(problems)} runs; {'; '.join(problems)}")
    return count


def _sync_run(store: Store, run_dir: Path, grid: str) -> bool:
    """Whether ``run_dir`` is a run, which now is in the store."""
    spec = _read_spec(run_dir)
    if spec is None:
        return False
    if is_running(run_dir):
        logger.info("%s: still running, left to its own process", run_dir)
        return True
    record = read_record(run_dir)
    run = MirroredRun(store, spec, run_dir, Settings(grid=grid), record)
    run.finish(record.status if record else RunStatus.INTERRUPTED)
    return True


def _read_spec(run_dir: Path) -> RunSpec | None:
    path = run_dir / SPEC_FILE
    if not path.exists():
        return None
    return read_model(path, RunSpec, f"damaged, or not of this version: move {run_dir} away")


class MlflowTracker:
    """Mirrors a run from a thread of its own: the training loop only appends to a list."""

    def __init__(
        self,
        spec: RunSpec,
        run_dir: Path,
        settings: Settings,
        uri: str,
        *,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self.spec, self.run_dir, self.settings, self.uri = spec, run_dir, settings, uri
        self.flush_seconds = flush_seconds
        self._rows: list[Row] = []
        self._rows_lock = threading.Lock()
        self._run: MirroredRun | None = None
        self._status: RunStatus | None = None
        self._attempted = threading.Event()
        self._ending = threading.Event()
        self._deadline = math.inf
        self._warned = False
        self._thread = threading.Thread(target=self._work, name="mlflow-mirror", daemon=True)
        self._thread.start()

    @property
    def run_id(self) -> str:
        """Waits for the first attempt to reach the store."""
        self._attempted.wait(FIRST_SECONDS)
        return self._run.run_id if self._run else ""

    def log(self, row: Row) -> None:
        """Queue ``row``."""
        with self._rows_lock:
            self._rows.append(row)

    def close(self, status: RunStatus) -> None:
        """Send what is left, the files and the status; give up after `CLOSE_SECONDS` or `STOP_SECONDS`."""
        patience = STOP_SECONDS if status is RunStatus.INTERRUPTED else CLOSE_SECONDS
        self._status, self._deadline = status, time.monotonic() + patience
        self._ending.set()
        self._thread.join(patience)
        if self._thread.is_alive():
            self._warn("it did not answer in time")

    def _work(self) -> None:
        while True:
            ended = self._ending.is_set()
            sent = self._try(last=ended)
            self._attempted.set()
            if not ended:
                self._ending.wait(self.flush_seconds)
            elif sent or self._run is None or time.monotonic() + AGAIN_SECONDS > self._deadline:
                return
            else:
                time.sleep(AGAIN_SECONDS)

    def _try(self, *, last: bool) -> bool:
        """Send what has come; whether the store took it."""
        with self._rows_lock:
            rows = list(self._rows)
        try:
            self._send(rows, last=last)
        except Exception as error:  # noqa: BLE001  (whatever a store raises must not reach the training)
            self._warn(_short(error))
            return False
        with self._rows_lock:
            del self._rows[: len(rows)]
        return True

    def _send(self, rows: list[Row], *, last: bool) -> None:
        if self._run is None:
            self._run = MirroredRun(
                Store(self.uri, self.settings.runs), self.spec, self.run_dir, self.settings
            )
            self._run.resume()
        self._run.send(rows)
        if last:
            assert self._status is not None
            self._run.finish(self._status)

    def _warn(self, reason: str) -> None:
        if not self._warned:
            logger.warning(
                "%s: the MLflow store %s is out of reach (%s); the run goes on, `sweeps sync` repairs it",
                self.run_dir,
                without_password(self.uri),
                reason,
            )
        self._warned = True
