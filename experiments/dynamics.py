"""dynamics.parquet: what the probes saw at planned steps, each step once, across restarts."""

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from attnres.decoder import Decoder
from attnres.errors import UserError, one_line
from attnres.files import atomic_path
from attnres.probes import IncompleteDynamicsError, Probe, Reading

DYNAMICS_FILE = "dynamics.parquet"


def probe_steps(steps: int, probes: int) -> tuple[int, ...]:
    """At most ``probes`` of the steps 1 .. ``steps``, evenly spaced in their logarithm.

    The first and the last are among them; one probe is at the last. Where neighbours fall on one step
    there are fewer.
    """
    if probes == 0:
        return ()
    if probes == 1:
        return (steps,)
    return tuple(sorted({round(step) for step in np.geomspace(1, steps, probes).tolist()}))


class Dynamics:
    """The readings of a run at its planned steps.

    Args:
        run_dir: folder of the run.
        planned: steps to watch (`probe_steps`).
        steps: optimiser steps of the run.
        step: step of the checkpoint the run continues from; later readings belong to a trajectory that
            did not survive and are removed.

    Raises:
        UserError: a planned step at or before ``step`` is missing.
    """

    def __init__(self, run_dir: Path, planned: Collection[int], *, steps: int, step: int) -> None:
        self.path = run_dir / DYNAMICS_FILE
        self.planned = sorted(planned)
        self.last = steps
        found = read_dynamics(self.path)
        self.rows = {known: rows for known, rows in found.items() if known <= step}
        self._probe: Probe | None = None
        due = [planned for planned in self.planned if planned <= step]
        if sorted(self.rows) != due:
            raise UserError(
                f"{self.path}: has steps {sorted(self.rows)} up to the checkpoint at step {step}, planned "
                f"are {due}; set `probes` as before, or delete {run_dir} to train this run again"
            )
        if self.rows != found:
            self.write()

    def watch(self, step: int, model: Decoder) -> AbstractContextManager[object]:
        """What `optimizer_step` runs inside at ``step``: a probe where one is planned."""
        self._probe = Probe(model) if step in self.planned else None
        return self._probe or nullcontext()

    def keep(self, step: int) -> dict[str, float]:
        """Take over what was seen in ``step``, the step just done -> a few numbers for its row.

        Raises:
            IncompleteDynamicsError: a layer is missing from it, or after the last step a planned step is.
        """
        numbers: dict[str, float] = {}
        if self._probe is not None:
            try:
                self.rows[step] = self._probe.readings()
            except IncompleteDynamicsError as error:
                raise IncompleteDynamicsError(f"dynamics of step {step}: {error}") from None
            numbers = summary(self.rows[step])
            self._probe = None
        if step == self.last and (missing := sorted(set(self.planned) - set(self.rows))):
            raise IncompleteDynamicsError(f"dynamics: no readings of planned step {missing[0]}")
        return numbers

    def write(self) -> None:
        """Write every reading so far, whole: before a checkpoint that relies on them, and at the end."""
        if self.rows:
            write_dynamics(self.path, self.rows)
        else:
            self.path.unlink(missing_ok=True)


def summary(readings: Iterable[Reading]) -> dict[str, float]:
    """The largest output and gradient over sublayers; entropy of reads, mean share of the largest, ln n."""
    values: dict[str, dict[int, float]] = {}
    sources: dict[int, int] = {}
    for reading in readings:
        if reading.quantity == "weight":
            sources[reading.site] = reading.source + 1
        else:
            values.setdefault(reading.quantity, {})[reading.site] = reading.value
    shares = [
        entropy / float(np.log(sources[site]))
        for site, entropy in values.get("entropy", {}).items()
        if sources[site] > 1
    ]
    largest = {f"largest_{name}": max(values[name].values()) for name in ("output", "gradient")}
    return largest | ({"entropy_share": float(np.mean(shares))} if shares else {})


def write_dynamics(path: Path, rows: dict[int, list[Reading]]) -> None:
    """Write readings by step, whole or not at all; the same bytes from the same rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = [(step, *reading) for step in sorted(rows) for reading in rows[step]]
    types = (pa.int64(), pa.int64(), pa.string(), pa.int64(), pa.string(), pa.float64())
    columns: Any = list(zip(*flat, strict=True)) or [()] * len(types)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(arrays, names=["step", *Reading._fields]), temporary)


def read_dynamics(path: Path) -> dict[int, list[Reading]]:
    """Readings by step; none where there is no file.

    Raises:
        UserError: the file is damaged.
    """
    if not path.exists():
        return {}
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: dict[int, list[Reading]] = {}
    try:
        for row in pq.read_table(path).to_pylist():
            rows.setdefault(row.pop("step"), []).append(Reading(**row))
    except (pa.ArrowInvalid, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged ({one_line(error)}); delete {path.parent} to train again"
        ) from error
    return rows
