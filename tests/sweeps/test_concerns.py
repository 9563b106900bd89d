"""What a plan warns of (cases R11, S13): each concern shown by a plan that has it and not by one without."""

from dataclasses import replace

import pytest

from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from experiments.record import RunStatus
from sweeps.concerns import Machine, concerns, data_of, disk_bytes, memory_bytes, this_machine
from sweeps.grid import ADDITIVE, Cell, Rung, pairs
from sweeps.plan import CellState, PlannedCell
from tests.experiments.mirrored import record_of

SHAPE = ModelShape(depth=2, width=16, num_heads=2, mlp_width=32, vocab_size=64, seq_len=32)
LARGE = Machine(memory_bytes=1e15, of="the test", free_disk_bytes=1e15)


def planned(cells: list[Cell], state: CellState = CellState.MISSING) -> list[PlannedCell]:
    return [PlannedCell(cell, state, None, 1.0) for cell in cells]


def cells_of(arms: tuple[StreamSpec, ...] = (ADDITIVE,), **rung) -> list[Cell]:
    fields = {"shape": SHAPE, "tokens_per_param": 40.0} | rung
    return pairs(Rung(**fields), arms=arms, dataset="synthetic", recipe="bytes_ladder")


def told(plan: list[PlannedCell], *, jobs: int = 1, machine: Machine = LARGE, data=None) -> list[str]:
    return concerns(plan, jobs=jobs, machine=machine, data=data or {})


def test_a_plan_without_concerns_has_none() -> None:
    plan = planned(cells_of((ADDITIVE, StreamSpec(name="full_attnres"))))
    assert told(plan, jobs=8) == []


def test_r11_a_cell_over_the_memory_is_named() -> None:
    plan = planned(cells_of((ADDITIVE, StreamSpec(name="full_attnres"))))
    needs = sorted(memory_bytes(item.cell.spec) for item in plan)
    between = replace(LARGE, memory_bytes=sum(needs) / 2)
    (line,) = told(plan, machine=between)
    assert line.startswith("memory: 1 cells") and "full_attnres" in line
    (line,) = told(plan, jobs=2, machine=replace(LARGE, memory_bytes=sum(needs) - 1))
    assert "side by side" in line and "--jobs" in line
    assert told(plan, jobs=1, machine=replace(LARGE, memory_bytes=sum(needs) - 1)) == []
    done = planned(cells_of((ADDITIVE,)), CellState.FINISHED)
    assert told(done, machine=replace(LARGE, memory_bytes=1)) == []


def test_a_full_disk_is_told() -> None:
    plan = planned(cells_of())
    needed = sum(disk_bytes(item.cell.spec) for item in plan)
    (line,) = told(plan, machine=replace(LARGE, free_disk_bytes=needed - 1))
    assert line.startswith("disk: ") and "prune" in line
    assert told(plan, machine=replace(LARGE, free_disk_bytes=needed)) == []


def test_a_long_warmup_and_unequal_ones_are_told() -> None:
    cells = cells_of()
    spec = cells[0].spec
    for share, words in ((0.3, "too short"), (0.02, "")):
        train = spec.train.model_copy(update={"warmup": round(share * spec.steps)})
        plan = planned([Cell(spec.model_copy(update={"train": train}), "ladder", 1)])
        assert [words in line for line in told(plan)] == [True] * bool(words)
    short = spec.model_copy(
        update={"train": spec.train.model_copy(update={"warmup": round(spec.steps * 0.02)})}
    )
    (line,) = told(planned([cells[0], Cell(short, "ladder", 1)]))
    assert "share differs" in line
    branches = [replace(cells[0], parent_id="trunk"), Cell(short, "ladder", 1, "trunk")]
    assert told(planned(branches)) == [], "branches of one trunk share its warm-up"


def test_s13_data_passed_over_more_than_once_are_told(sweep_data) -> None:
    cells = cells_of()
    assert data_of(cells, sweep_data / "nothing here") == {}
    from experiments.data.base import DATASETS

    DATASETS.get("synthetic").load(64, sweep_data)
    data = data_of(cells, sweep_data)
    once = next(iter(data.values())).passes(cells[0].spec.tokens)
    assert 0 < once < 1 and told(planned(cells), data=data) == []
    again = cells[0].spec.model_copy(update={"tokens": cells[0].spec.tokens * int(5 / once)})
    lines = told(planned([Cell(again, "ladder", 1)]), data=data)
    (line,) = [line for line in lines if line.startswith("data: ")]
    assert "worth visibly less" in line


def test_arms_that_are_the_same_model_are_told() -> None:
    same = StreamSpec(name="block_attnres", options={"num_blocks": 9})
    other = StreamSpec(name="block_attnres", options={"num_blocks": 2})
    full = StreamSpec(name="full_attnres")
    (line,) = told(planned(cells_of((ADDITIVE, same, other, full))))
    assert line.startswith("arms: block_attnres[num_blocks=9] and full_attnres are the same model at d2w16")
    assert told(planned(cells_of((ADDITIVE, other, full)))) == []
    assert told(planned(cells_of((ADDITIVE, StreamSpec(name="overhead_only"), full)))) == []


@pytest.mark.parametrize(
    ("losses", "end"), [((3.0, 2.9, 3.1), ""), ((2.8, 2.9, 3.1), "smallest"), ((3.0, 2.9, 2.8), "largest")]
)
def test_an_optimum_at_the_end_of_the_grid_is_told(losses, end) -> None:
    cells = [replace(cell, role="rate") for rate in (0.01, 0.02, 0.04) for cell in cells_of(lr=rate)]
    plan = [
        PlannedCell(cell, CellState.FINISHED, record_of(cell.spec, RunStatus.FINISHED, val_loss=loss), 1.0)
        for cell, loss in zip(cells, losses, strict=True)
    ]
    lines = told(plan)
    assert len(lines) == bool(end)
    assert all(end in line and "learning rate" in line for line in lines)
    assert told([replace(plan[0], state=CellState.MISSING, record=None), *plan[1:]]) == []


def test_this_machine_has_memory_and_disk(tmp_path) -> None:
    machine = this_machine(tmp_path / "not made yet", "cpu")
    assert machine.memory_bytes > 1e9 and machine.free_disk_bytes > 0
