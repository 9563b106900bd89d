"""Grids whose budgets share trunks: what they plan and save, and in which order they are trained."""

import json
import shutil
from pathlib import Path

import pytest

from analysis.plan_file import read_plan
from attnres.errors import UserError
from attnres.shape import ModelShape
from experiments.settings import Settings
from sweeps.grid import ADDITIVE, load_grid
from sweeps.launch.local import _Pool
from sweeps.launch.retry import Retries
from sweeps.plan import CellState, make_plan, write_plan
from sweeps.show import summary
from sweeps.trunks import BranchedRung, branched_pairs, cell_settings, chain, saving, without_trunk
from tests.sweeps.test_sweep import sweep

SHAPE = ModelShape(depth=2, width=16, num_heads=2, mlp_width=48, vocab_size=64, seq_len=32)


def of_one_shape(*tokens_per_param: float, seeds: tuple[int, ...] = (0,)):
    rung = BranchedRung(SHAPE, tokens_per_param, seeds)
    return branched_pairs(rung, arms=(ADDITIVE,), dataset="synthetic", recipe="smoke_trunks")


def test_five_budgets_a_factor_two_apart_with_a_tenth_of_cooldown_save_over_forty_percent():
    """Trunk 16 x .9 = 14.4 and cooldowns 31 x .1 = 3.1, against 31."""
    cells = of_one_shape(40, 80, 160, 320, 640)
    saved = saving(cells)
    assert (saved.trunks, saved.branches) == (1, 5)
    assert saved.trained / saved.separate == pytest.approx(17.5 / 31, rel=2e-3)
    assert saved.share >= 0.40
    assert saving(load_grid("smoke").cells) is None


def test_a_trunk_and_its_branches_know_each_other():
    trunk, *branches = of_one_shape(10, 20, 40)
    assert trunk.role == "trunk" and {cell.role for cell in branches} == {"ladder"}
    assert {cell.parent_id for cell in branches} == {trunk.spec.spec_id} and trunk.parent_id == ""
    assert trunk.spec.steps == max(cell.first_step for cell in branches)
    settings = cell_settings(trunk, (trunk, *branches), Settings())
    assert [branch.step for branch in settings.branches] == [cell.first_step for cell in branches]
    assert cell_settings(branches[0], branches, Settings()).parent == trunk.spec.spec_id
    assert trunk.trained() == trunk.compute
    for cell in branches:
        assert cell.trained() == pytest.approx(cell.compute * cell.spec.train.cooldown / cell.spec.steps)
        assert cell.trained(cell.first_step) == 0 == cell.trained(3)
    assert chain(trunk, branches) == pytest.approx(trunk.compute + branches[-1].trained())
    assert len({cell.label for cell in (trunk, *branches)}) == 4


def test_seeds_and_arms_have_trunks_of_their_own():
    cells = of_one_shape(10, 20, seeds=(0, 1))
    assert len({cell.parent_id for cell in cells if cell.parent_id}) == 2


def test_budgets_that_are_one_or_a_recipe_without_trunk_are_refused():
    with pytest.raises(UserError, match="different numbers"):
        BranchedRung(SHAPE, (10, 10))
    with pytest.raises(UserError, match="recipe smoke: .*no trunk"):
        branched_pairs(BranchedRung(SHAPE, (10, 20)), arms=(ADDITIVE,), dataset="synthetic", recipe="smoke")


def test_a_grid_with_branches_and_without_their_trunk_is_refused(trunks_file):
    path = trunks_file("lost_trunk")
    path.write_text(path.read_text().replace("tuple(cells)", 'tuple(c for c in cells if c.role != "trunk")'))
    with pytest.raises(UserError, match="branches from trunk [0-9a-f]{12}, which is not planned"):
        load_grid(str(path))


def test_the_plan_counts_trunks_apart_and_writes_the_parents(tmp_path, trunks_file):
    grid = load_grid(str(trunks_file("planned_trunks", widths=(8, 12))))
    plan = make_plan(grid, tmp_path / "runs")
    assert summary(plan) == "8 cells: 8 missing; 4 trunks: 4 missing"
    trained = [item for item in plan if item.cell.parent_id]
    assert all(item.seconds == pytest.approx(item.cell.trained() / 2e10) for item in trained)
    write_plan(grid, tmp_path)
    read = read_plan(tmp_path)
    assert [cell.parent_id for cell in read.cells] == [cell.parent_id for cell in grid.cells]
    assert [cell.role for cell in read.cells].count("trunk") == 4


def test_the_pool_starts_the_longest_chain_first_and_no_branch_before_its_trunk(tmp_path):
    """Without processes: what `_next` gives while trunks wait, run and end."""
    small, large = of_one_shape(5, 10), of_one_shape(80, 160)
    cells = [*small, *large]
    pool = _Pool(cells, Settings(runs=tmp_path, tracking=False), lambda _: None, Retries(0))
    first = pool._next()
    assert first is large[0]
    pool.running[first.spec.spec_id] = None
    second = pool._next()
    assert second is small[0]
    pool.running[second.spec.spec_id] = None
    assert pool._next() is None, "both trunks are at work"
    del pool.running[second.spec.spec_id]
    assert pool._next() is small[2], "the longest of those whose trunk has ended"


def test_a_branch_whose_trunk_left_nothing_fails_without_being_started(tmp_path):
    trunk, *branches = of_one_shape(5, 10)
    told = []
    pool = _Pool(branches, Settings(runs=tmp_path, tracking=False), told.append, Retries(0))
    assert pool.execute(jobs=2, fail_fast=False)
    assert {(event.cell.label, event.status) for event in told if hasattr(event, "status")} == {
        (cell.label, "failed") for cell in branches
    }
    assert all(f"trunk {trunk.spec.spec_id} failed: it left no checkpoint" in event.message
               for event in told if hasattr(event, "message"))  # fmt: skip
    assert list(tmp_path.iterdir()) == [], "no folder is made for what cannot start"


def losses(runs: Path) -> dict[str, float]:
    return {path.parent.name: json.loads(path.read_text())["val_loss"] for path in runs.glob("*/record.json")}


def test_w05_a_branched_sweep_trains_every_step_once_and_repairs_what_is_lost(
    tmp_path, sweep_data, trunks_file
):
    path = trunks_file("branched_sweep")
    options = ("--data", sweep_data, "--no-tracking", "--jobs", "2")
    first = sweep("run", path, *options, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "4 cells: 4 finished; 2 trunks: 2 finished" in first.stdout
    runs, grid = tmp_path / "runs", load_grid(str(path))
    before = losses(runs)
    for cell in grid.cells:
        record = json.loads((runs / cell.spec.spec_id / "record.json").read_text())
        assert (record["parent_id"], record["attempts"]) == (cell.parent_id, 1)
        assert record["compute"] == cell.compute, "of the whole run: what the law needs"
    trunk, branch = grid.cells[0], grid.cells[2]
    again = sweep("run", path, *options, cwd=tmp_path)
    assert again.returncode == 0 and "finished: " not in again.stdout
    shutil.rmtree(runs / branch.spec.spec_id)
    for kept in (runs / trunk.spec.spec_id / "branch_points").glob(f"step-{branch.first_step:08d}-*"):
        kept.unlink()
    plan = {item.cell.spec.spec_id: item for item in make_plan(grid, runs)}
    assert plan[trunk.spec.spec_id].to_train and plan[trunk.spec.spec_id].state is CellState.FINISHED
    assert without_trunk(branch, runs).startswith(f"trunk {trunk.spec.spec_id} failed")
    repaired = sweep("run", path, *options, cwd=tmp_path)
    assert repaired.returncode == 0 and repaired.stdout.count("finished: ") == 2, repaired.stderr
    assert losses(runs) == before
    (runs / trunk.spec.spec_id / "record.json").unlink()
    shutil.rmtree(runs / branch.spec.spec_id)
    shutil.rmtree(runs / trunk.spec.spec_id / "branch_points")
    shutil.rmtree(runs / trunk.spec.spec_id / "checkpoints", ignore_errors=True)
    metrics = runs / trunk.spec.spec_id / "metrics.jsonl"
    metrics.unlink()
    metrics.mkdir()
    failed = sweep("run", path, *options, cwd=tmp_path)
    assert failed.returncode == 1
    assert f"failed: {trunk.label}" in failed.stderr and "cannot be read" in failed.stderr
    assert (
        f"failed: {branch.label} (trunk {trunk.spec.spec_id} failed: it left no checkpoint" in failed.stderr
    )
    assert not (runs / branch.spec.spec_id).exists()
