"""Tables 1, 2 and 4 of the paper, written again from the facts."""

from analysis.published.attnres_ablations import TABLE_4
from analysis.published.attnres_cost import (
    INFERENCE_OVERHEAD_BELOW,
    TRAINING_OVERHEAD_BELOW,
    TYPICAL_TOTAL,
    block_two_phase_io,
    full_two_phase_io,
    mhc_io,
    standard_io,
)
from analysis.published.attnres_scaling import BASELINE, TABLE_2, VARIANTS, Cell
from analysis.report.document import Paragraph, Row, Section, Table, line, row, table
from analysis.wording import digits, loss_text

STREAMS, NUM_BLOCKS, BLOCK_SIZE = 4, 8, 16
"""m, N and S of Table 1's typical case."""


def tables() -> Section:
    """All three, and the overheads that have no table."""
    bounds = (
        "Overheads are stated as bounds, without a table: under "
        f"{TRAINING_OVERHEAD_BELOW * 100:g} % of a training step, under {INFERENCE_OVERHEAD_BELOW * 100:g} % "
        "of inference latency."
    )
    return Section(
        "Tables of the paper", "tables", (_table_1(), _table_2(), _table_4(), Paragraph(line(bounds)))
    )


def _table_1() -> Table:
    """Formulas at the typical case, beside the printed totals."""
    formulas = {
        "standard": ("3", standard_io()),
        "mhc": ("8m + 2", mhc_io(STREAMS)),
        "full_two_phase": ("S + N", full_two_phase_io(NUM_BLOCKS, BLOCK_SIZE)),
        "block_two_phase": ("N/S + 5", block_two_phase_io(NUM_BLOCKS, BLOCK_SIZE)),
    }
    rows = (
        row(name.replace("_", " "), formula, digits(value), digits(TYPICAL_TOTAL[name]))
        for name, (formula, value) in formulas.items()
    )
    case = f"m = {STREAMS}, N = {NUM_BLOCKS}, S = {BLOCK_SIZE}"
    title = f"Table 1: reads and writes of the stream a token and sublayer, in units of width; {case}"
    return table(title, "scheme | formula | >evaluated | >printed", rows)


def _table_2() -> Table:
    arms = (BASELINE, *VARIANTS)
    columns = "active parameters | >tokens | >depth | >width | >MLP width | >rate | >batch (sequences)"
    columns += "".join(f" | >{arm}" for arm in arms)
    return table(
        "Table 2: configurations and validation losses, nats a token", columns, map(_cell_row, TABLE_2)
    )


def _cell_row(cell: Cell) -> Row:
    return row(
        f"{cell.params_active / 1e6:g}M",
        f"{cell.tokens / 1e9:g}B",
        cell.depth,
        cell.width,
        cell.mlp_width,
        digits(cell.lr, 3),
        cell.batch_sequences,
        *(loss_text(cell.loss[arm], 3) for arm in (BASELINE, *VARIANTS)),
    )


def _table_4() -> Table:
    base = TABLE_4[0].loss
    rows = (row(a.label, loss_text(a.loss, 3), loss_text(base - a.loss, 3)) for a in TABLE_4)
    return table("Table 4: ablations at 436M, one run each", "variant | >loss | >gain over PreNorm", rows)
