"""A study: the folder results/<study>/ and every file the stages leave in it.

Written by sweeps
    plan.json         which runs there should be, and how fast the arms train side by side
                      (`analysis.plan_file`)
Written by a person, if at all
    exclusions.csv    runs to be left out of the fits, each with its reason (`OUTLIER_COLUMNS`)
Written by ``analysis table``
    runs.csv          one row a planned run, `RUN_COLUMNS` + `EXCLUSION_COLUMNS`; stray runs are rows too
    curves.parquet    `CURVE_COLUMNS`
    dynamics/<spec_id>.parquet   `DYNAMICS_COLUMNS`: over depth, at planned steps; runs that recorded them
Written by ``analysis fits``
    fits/<form>--<arm>.json   one `FitResult` for each arm and form
    fits/counts.json          planned, finished, failed, ... by arm; excluded runs and their reasons; notes
    fits/residuals.json       [{variant, form, spec_ids, size, compute, loss, predicted, residual}]
    fits/holdout.json         [{variant, form, size, budget, compute, measured, predicted, lo, hi, inside,
                              level, spec_ids, fitted_on, message}]: the largest budget from the others
    fits/noise.json           {by_arm, pooled, pairs}: seed sd by arm and size, sd of paired differences
    fits/rates.json           [{variant, size, budget, rates, seeds, losses, best, optimum, at_edge}]:
                              means over the seeds that all rates of an arm and size share
    fits/isoflop.json         [{variant, law, points}]: parabolas of budgets trained at three sizes or more
    fits/checklist.json       [{item, value}]: what was fitted and how
Written by ``analysis multipliers``
    multipliers.csv           `MULTIPLIER_COLUMNS`
    fits/pairs.json           [{variant, size, budget, compute, compute_variant, n_seeds, loss_baseline,
                              loss_variant, difference, compute_multiplier, spec_ids}]: the headline's rungs
    fits/sensitivity.json     [{variant, kind, value, compute_multiplier, lo, hi, status}]; kind: irreducible
                              (free in each arm, shared, fixed: E, disagreement), leave_one_size_out,
                              leave_largest_budget_out, corrupted_cell, bootstrap, rounding, put_back
                              (the runs of exclusions.csv counted after all)
    fits/comparison.json      [{variant, model, meaning, parameters, rss, aicc, test, p, preferred, status}]
    fits/error_budget.json    [{variant, source, sd_ln_m, in_interval, how}]
    fits/notes.json           [{variant, note}]: what a reader must know beside the numbers
Written by ``analysis figures`` and ``analysis report``
    figures/*.{svg,pdf,png}   report.html, report.md

Deleting all but plan.json, runs.csv, curves.parquet (and exclusions.csv) loses no multiplier: ``analysis
report`` rebuilds the rest. What is shown over depth comes back from dynamics/, which ``analysis table``
copies from the runs.
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.exclusions import mark_outliers, read_outliers
from analysis.plan_file import Plan, Throughput, read_plan
from analysis.run_rows import check_rows
from analysis.schema import CURVE_COLUMNS, EXCLUSION_COLUMNS, MULTIPLIER_COLUMNS, RUN_COLUMNS, Column
from analysis.tabular import DTYPES, read_table
from attnres.errors import UserError, one_line
from attnres.files import write_json

RUNS_FILE = "runs.csv"
CURVES_FILE = "curves.parquet"
MULTIPLIERS_FILE = "multipliers.csv"
FITS_FOLDER = "fits"


class Study:
    """Reads the files of one study, each once and when asked for.

    Args:
        folder: results/<study>.

    Raises:
        UserError: on access, when a file is absent or breaks its contract.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UserError(
                f"{folder}: no such study folder; studies are folders of results/, made by a sweep"
            )
        self.folder = folder

    @cached_property
    def plan(self) -> Plan:
        """The planned runs."""
        return read_plan(self.folder)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """runs.csv: planned runs in any state, and stray ones; columns of the contract."""
        path = self.folder / RUNS_FILE
        if not path.exists():
            raise UserError(
                f"{path}: no such file; make it with: python -m analysis table --study {self.folder}"
            )
        table = self._read_table(path, (*RUN_COLUMNS, *EXCLUSION_COLUMNS), "table")
        check_rows(path, table, self.plan)
        return mark_outliers(path, table, self.outliers)

    @cached_property
    def outliers(self) -> dict[str, str]:
        """exclusions.csv: spec_id -> why a person leaves the run out; empty without the file."""
        return read_outliers(self.folder, self.plan)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """`runs` with size, pair_id, role, params and trunk of the plan beside them; planned runs only.

        ``trunk``: the run whose steps it shares, as the plan says or else the record (parent_id). The plan
        comes first: runs of one trajectory share their noise even where each was trained alone.
        """
        facts = pd.DataFrame(
            [
                {
                    "spec_id": c.spec_id,
                    "pair_id": c.pair_id,
                    "size": c.size,
                    "role": c.role,
                    "params": c.params,
                    "trunk": c.parent_id,
                }
                for c in self.plan.cells
            ],
            columns=["spec_id", "pair_id", "size", "role", "params", "trunk"],
        )
        cells = self.runs.merge(facts, on="spec_id", how="inner", validate="one_to_one")
        return cells.assign(trunk=cells["trunk"].where(cells["trunk"] != "", cells["parent_id"].fillna("")))

    @cached_property
    def curves(self) -> pd.DataFrame:
        """curves.parquet; an empty frame if the study has none."""
        path = self.folder / CURVES_FILE
        if not path.exists():
            return pd.DataFrame({c.name: pd.Series([], dtype=DTYPES[c.kind]) for c in CURVE_COLUMNS})
        try:
            if not path.is_file():
                raise OSError("not a file")  # pandas would read a folder as a table without columns
            frame = pd.read_parquet(path)
        except (ValueError, OSError) as error:  # pyarrow's errors are among both
            raise UserError(
                f"{path}: cannot be read as parquet ({str(error).splitlines()[0]}); "
                "make it again (python -m analysis table)"
            ) from error
        missing = [c.name for c in CURVE_COLUMNS if c.name not in frame.columns]
        if missing:
            raise UserError(f"{path}: no column {', '.join(missing)}")
        return frame

    @cached_property
    def throughput(self) -> pd.DataFrame:
        """Throughput ratios of plan.json, one row a size and arm; no rows if none was measured."""
        frame = pd.DataFrame(
            [row.model_dump() for row in self.plan.throughput], columns=list(Throughput.model_fields)
        )
        return frame.astype({"ratio": "float64", "lo": "float64", "hi": "float64"})

    @cached_property
    def multipliers(self) -> pd.DataFrame:
        """multipliers.csv."""
        path = self.folder / MULTIPLIERS_FILE
        if not path.exists():
            raise UserError(
                f"{path}: no such file; make it with: python -m analysis multipliers --study {self.folder}"
            )
        return self._read_table(path, MULTIPLIER_COLUMNS, "multipliers")

    def _read_table(self, path: Path, columns: Sequence[Column], command: str) -> pd.DataFrame:
        try:
            return read_table(path, columns, required=False)
        except UserError as error:
            advice = f"make it again: python -m analysis {command} --study {self.folder}"
            raise UserError(f"{error}; {advice}") from error

    def read_fits(self, name: str) -> Any:
        """fits/<name>.json, whatever it holds.

        Raises:
            UserError: there is no such file; it says which command makes it.
        """
        path = self.folder / FITS_FOLDER / f"{name}.json"
        if not path.exists():
            raise UserError(
                f"{path}: no such file; make it with: python -m analysis report --study {self.folder}"
            )
        try:
            return json.loads(path.read_text())
        except (ValueError, RecursionError) as error:
            advice = f"make it again: python -m analysis report --study {self.folder}"
            raise UserError(f"{path}: damaged ({one_line(error)}); {advice}") from error

    def write_fits(self, name: str, value: Any) -> None:
        """Write fits/<name>.json."""
        folder = self.folder / FITS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{name}.json", value)


def fit_name(form: str, variant: str) -> str:
    """File name, without ending, of the fit of ``form`` to the arm ``variant``.

    ``power_law--block_attnres_num_blocks_4``
    """
    return f"{form}--{re.sub(r'[^A-Za-z0-9.]+', '_', variant).strip('_')}"
