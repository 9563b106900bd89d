"""The only file that writes to MLflow: its store, and one run in it kept equal to a run directory.

One spec is one MLflow run, across restarts: its id lies in ``<run>/mlflow_run_id`` and it is found
again by the tag ``spec_id``. A mirror holds one value per step, those of the directory: where a store
holds anything else (a run retrained with other numbers), the MLflow run is replaced.
"""

import logging
import os
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from attnres.files import write_text
from experiments import mirror
from experiments.environment import git_sha
from experiments.history import METRICS_FILE, Row, read_rows
from experiments.record import RECORD_FILE, RunRecord, RunStatus, read_record
from experiments.settings import Settings
from experiments.spec import RunSpec

EXPERIMENT = "attnres-scaling"
RUN_ID_FILE = "mlflow_run_id"
ARTEFACTS = ("spec.json", RECORD_FILE, METRICS_FILE, "dynamics.parquet", "log.txt")
"""Files of a run directory that are copied to the store."""

logger = logging.getLogger(__name__)

SQLITE = "sqlite:///"
LOCK_SECONDS = 120.0
MOST_IN_A_BATCH = 1000
"""MLflow's own limit of metrics in one call."""

MLFLOW_STATUS = {
    RunStatus.FINISHED: "FINISHED",
    RunStatus.DIVERGED: "FAILED",
    RunStatus.FAILED: "FAILED",
    RunStatus.INTERRUPTED: "KILLED",
}


class Store:
    """A client of the store at ``uri``, and the experiment in it; ``runs``: folder of the run directories."""

    def __init__(self, uri: str, runs: Path) -> None:
        set_environment()
        from mlflow import MlflowClient

        logging.getLogger("alembic").setLevel(logging.ERROR)
        logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # what it raises is told once, by the tracker
        with _schema_lock(uri):
            self.client: Any = MlflowClient(tracking_uri=uri)
            self.experiment_id = self._experiment(_artefact_location(uri, runs), moves=uri.startswith(SQLITE))

    def _experiment(self, location: str | None, *, moves: bool) -> str:
        """Id of the experiment, made if it is missing, whoever else is making it.

        Where the store ``moves`` with its files, one made elsewhere is set aside.
        """
        from mlflow.exceptions import MlflowException

        known = self.client.get_experiment_by_name(EXPERIMENT)
        if moves and known is not None and location != known.artifact_location:
            self._set_aside(known)
            known = None
        if known is None:
            try:
                return str(self.client.create_experiment(EXPERIMENT, artifact_location=location))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                known = self.client.get_experiment_by_name(EXPERIMENT)
        elif known.lifecycle_stage == "deleted":
            self.client.restore_experiment(known.experiment_id)
        return str(known.experiment_id)

    def _set_aside(self, moved: Any) -> None:
        """Delete the experiment of a SQLite file that was moved: its files would still go where it was.

        Its runs are told anew as they go on, or all at once by `sync`.
        """
        logger.warning(
            "%s is another's place: the store was moved here; `sweeps sync` fills it again",
            moved.artifact_location,
        )
        self.client.rename_experiment(moved.experiment_id, f"{EXPERIMENT} at {moved.artifact_location}")
        self.client.delete_experiment(moved.experiment_id)


def set_environment() -> None:
    """Before MLflow is imported or started: no telemetry, short patience with servers."""
    for name, value in (
        ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("DO_NOT_TRACK", "true"),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", "20"),
    ):
        os.environ.setdefault(name, value)


def _schema_lock(uri: str) -> AbstractContextManager[Any]:
    """Held while a SQLite store may be created: 8 of 8 processes died otherwise (case M01)."""
    if not uri.startswith(SQLITE):
        return nullcontext()
    path = Path(uri.removeprefix(SQLITE))
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(f"{path}.lock", timeout=LOCK_SECONDS)


def _artefact_location(uri: str, runs: Path) -> str | None:
    """Beside a SQLite file; of another database beside the runs; a server decides for itself.

    A database that is told nothing would have them in whatever folder a process happens to run in.
    """
    if uri.startswith(("http://", "https://")):
        return None
    beside = Path(uri.removeprefix(SQLITE)).parent if uri.startswith(SQLITE) else runs
    return (beside.resolve() / "mlflow_artefacts").as_uri()


class MirroredRun:
    """One MLflow run, kept equal to one run directory."""

    def __init__(
        self, store: Store, spec: RunSpec, run_dir: Path, settings: Settings, record: RunRecord | None = None
    ) -> None:
        self.client, self.experiment_id = store.client, store.experiment_id
        self.spec, self.run_dir, self.settings = spec, run_dir, settings
        self._started_at = _milliseconds(record.started_at) if record else int(time.time() * 1000)
        self._sent: dict[tuple[str, int], float] = {}
        found = self._find()
        if found is None:
            self._create()
        else:
            self._adopt(found)

    def resume(self) -> None:
        """Mark the run as running, and how it is executed now."""
        before = self.client.get_run(self.run_id)
        if before.info.status != "RUNNING":
            self.client.update_run(self.run_id, status="RUNNING")
        self._set_tags(mirror.operational_tags(self.settings, before.data.tags))

    def send(self, rows: list[Row]) -> None:
        """Add what the store does not have; if it has other values, replace the MLflow run."""
        points, odd = mirror.points(rows, self.spec)
        if any(self._sent.get((p.key, p.step), p.value) != p.value for p in points):
            self._replace()
        self._send_points(points)
        self._set_tags(odd)

    def finish(self, status: RunStatus) -> None:
        """Make the MLflow run equal to the directory, files and status included."""
        rows = read_rows(self.run_dir / METRICS_FILE)
        record = read_record(self.run_dir)
        points, odd = mirror.points(rows, self.spec)
        points += mirror.summary_points(record)
        wanted = {(p.key, p.step): p.value for p in points}
        if any(wanted.get(place) != value for place, value in self._sent.items()):
            self._replace()
        self._send_points(points)
        self._set_tags({**odd, **(mirror.record_tags(record) if record else {})})
        for name in ARTEFACTS:
            if (self.run_dir / name).exists():
                self.client.log_artifact(self.run_id, str(self.run_dir / name))
        if self.client.get_run(self.run_id).info.status != MLFLOW_STATUS[status]:
            seconds = record.wall_seconds if record else 0.0
            end = max(self._started_at + int(seconds * 1000), self._started_at)
            self.client.set_terminated(self.run_id, MLFLOW_STATUS[status], end_time=end)

    def _find(self) -> Any | None:
        """The MLflow run of this spec: by the id in the directory, else by its tag."""
        from mlflow.exceptions import MlflowException

        path = self.run_dir / RUN_ID_FILE
        if path.exists():
            try:
                run = self.client.get_run(path.read_text().strip())
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                if run.info.lifecycle_stage == "active" and run.data.tags.get("spec_id") == self.spec.spec_id:
                    return run
        wanted = f"tags.spec_id = '{self.spec.spec_id}'"
        runs = self.client.search_runs([self.experiment_id], wanted, order_by=["attributes.start_time ASC"])
        return runs[0] if runs else None

    def _create(self) -> None:
        tags = {
            **mirror.tags(self.spec, git_sha()),
            **({"grid": self.settings.grid} if self.settings.grid else {}),
        }
        run = self.client.create_run(
            self.experiment_id, start_time=self._started_at, tags=tags, run_name=mirror.title(self.spec)
        )
        self._own(run.info.run_id)
        self._sent = {}
        self._log_params({})

    def _adopt(self, run: Any) -> None:
        self._own(run.info.run_id)
        self._started_at = run.info.start_time
        for key in run.data.metrics:
            for point in self.client.get_metric_history(self.run_id, key):
                place = (key, point.step)
                twice = place in self._sent and self._sent[place] != point.value
                self._sent[place] = float("nan") if twice else point.value
        grids = {*filter(None, run.data.tags.get("grid", "").split(",")), *filter(None, [self.settings.grid])}
        self._set_tags({"grid": ",".join(sorted(grids))} if grids else {})
        self._log_params(run.data.params)

    def _replace(self) -> None:
        self.client.delete_run(self.run_id)
        self._create()

    def _own(self, run_id: str) -> None:
        self.run_id = run_id
        write_text(self.run_dir / RUN_ID_FILE, run_id + "\n")

    def _log_params(self, known: dict[str, str]) -> None:
        from mlflow.entities import Param

        missing = [Param(key, value) for key, value in mirror.params(self.spec).items() if key not in known]
        if missing:
            self.client.log_batch(self.run_id, params=missing)
        if (self.run_dir / "spec.json").exists():
            self.client.log_artifact(self.run_id, str(self.run_dir / "spec.json"))

    def _send_points(self, points: list[mirror.Point]) -> None:
        """Send the new ones. Time stamps follow from the rows, so that a repeated call adds nothing."""
        from mlflow.entities import Metric

        new = [point for point in points if (point.key, point.step) not in self._sent]
        for start in range(0, len(new), MOST_IN_A_BATCH):
            batch = new[start : start + MOST_IN_A_BATCH]
            self.client.log_batch(
                self.run_id,
                metrics=[
                    Metric(p.key, p.value, self._started_at + int(p.seconds * 1000), p.step) for p in batch
                ],
            )
            self._sent |= {(p.key, p.step): p.value for p in batch}

    def _set_tags(self, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        if tags:
            self.client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in tags.items()])


def _milliseconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)
