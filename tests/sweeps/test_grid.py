import pytest

from attnres.accounting import flops_per_token
from attnres.errors import UserError
from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from sweeps.grid import ADDITIVE, GRIDS, Rung, load_grid, pairs
from sweeps.plan import CellState, make_plan, plan_document, write_plan

ALL = list(GRIDS)


@pytest.mark.parametrize("name", ALL)
def test_every_grid_expands_into_unique_complete_pairs(name):
    grid = load_grid(name)
    assert len({cell.spec.spec_id for cell in grid.cells}) == len(grid.cells)
    arms = {arm.variant for arm in grid.arms}
    by_pair: dict[str, list] = {}
    for cell in grid.cells:
        by_pair.setdefault(cell.spec.pair_id, []).append(cell)
    for cells in by_pair.values():
        assert {cell.spec.stream.variant for cell in cells} == arms
        first = cells[0].spec.model_dump(exclude={"stream"})
        assert all(cell.spec.model_dump(exclude={"stream"}) == first for cell in cells)


@pytest.mark.parametrize("name", ALL)
def test_budget_is_the_baseline_s_and_compute_each_arm_s_own(name):
    for cell in load_grid(name).cells:
        baseline = flops_per_token(cell.spec.shape, ADDITIVE).total * cell.spec.tokens
        assert cell.spec.budget == pytest.approx(baseline, rel=1e-5)
        own = flops_per_token(cell.spec.shape, cell.spec.stream).total * cell.spec.tokens
        assert cell.compute == own
        assert (own > baseline) == (cell.spec.stream.name != "additive")


def test_the_demo_is_a_ladder_of_five_sizes_over_thirty_fold_compute():
    grid = load_grid("demo")
    budgets = sorted({cell.spec.budget for cell in grid.cells})
    assert len(budgets) >= 5 and budgets[-1] / budgets[0] >= 30
    ratios = [cell.spec.tokens / cell.params for cell in grid.cells]
    assert max(ratios) / min(ratios) < 1.1, "tokens a parameter are about constant"
    seeds = {b: {c.spec.seed for c in grid.cells if c.spec.budget == b} for b in budgets}
    assert all(len(seeds[budget]) >= 2 for budget in budgets[:2])


def test_r07_blocks_of_the_demo_are_real_blocks_at_every_size():
    """No arm coincides with another: Block with as many blocks as sublayers would be Full."""
    for cell in load_grid("demo").cells:
        if cell.spec.stream.name == "block_attnres":
            assert cell.spec.stream.options["num_blocks"] < 2 * cell.spec.shape.depth


def test_unknown_grids_and_files_are_named(tmp_path):
    with pytest.raises(UserError, match="unknown grid 'dmo': known are .*demo.*smoke"):
        load_grid("dmo")
    with pytest.raises(UserError, match=r"nowhere\.py: no such file"):
        load_grid(str(tmp_path / "nowhere.py"))
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    with pytest.raises(UserError, match="registers 0 new grids"):
        load_grid(str(empty))


def test_a_grid_in_a_user_s_own_file_is_found(grid_file):
    assert load_grid(str(grid_file("own_grid_found"))).name == "own_grid_found"


def test_an_impossible_shape_or_option_is_refused_before_anything_runs(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(
        "from attnres.stream_spec import StreamSpec\n"
        "from sweeps.grid import GRIDS, Grid\n"
        "@GRIDS.register('broken_option')\n"
        "def make():\n"
        "    return Grid('broken_option', '', (StreamSpec(name='block_attnres', options={'blocks': 2}),), ())\n"
    )
    with pytest.raises(UserError, match="grid 'broken_option'.*blocks"):
        load_grid(str(path))


def test_unknown_data_sets_are_refused_by_the_grid():
    shape = ModelShape(depth=1, width=8, num_heads=2, mlp_width=16, vocab_size=64, seq_len=32)
    with pytest.raises(UserError, match="unknown data set 'speech'"):
        pairs(Rung(shape, 8), arms=(ADDITIVE,), dataset="speech", recipe="smoke")


def test_seeds_change_the_order_of_the_data_too():
    shape = ModelShape(depth=1, width=8, num_heads=2, mlp_width=16, vocab_size=64, seq_len=32)
    cells = pairs(Rung(shape, 8, seeds=(0, 1)), arms=(ADDITIVE,), dataset="synthetic", recipe="smoke")
    assert [(cell.spec.seed, cell.spec.data_seed) for cell in cells] == [(0, 0), (1, 1)]


def test_plan_json_has_the_same_bytes_twice_and_names_every_cell(tmp_path):
    grid = load_grid("demo")
    write_plan(grid, tmp_path)
    first = (tmp_path / "plan.json").read_bytes()
    write_plan(grid, tmp_path)
    assert (tmp_path / "plan.json").read_bytes() == first
    document = plan_document(grid)
    assert [cell["spec_id"] for cell in document["cells"]] == [cell.spec.spec_id for cell in grid.cells]
    assert document["baseline"] == "additive" == document["arms"][0]


def test_a_plan_of_nothing_done_is_all_missing(tmp_path):
    plan = make_plan(load_grid("smoke"), tmp_path / "runs")
    assert {item.state for item in plan} == {CellState.MISSING}
    assert all(item.seconds > 0 for item in plan)
    assert not (tmp_path / "runs").exists(), "planning creates no run"


def test_variant_labels_hold_their_options():
    assert (
        StreamSpec(name="block_attnres", options={"num_blocks": 4}).variant == "block_attnres[num_blocks=4]"
    )


def test_a_control_that_computes_the_baseline_gets_its_role_on_the_ladder():
    grid = load_grid("demo_controls")
    roles = {(cell.spec.stream.name, cell.role) for cell in grid.cells}
    assert roles == {("additive", "ladder"), ("overhead_only", "overhead_only")}
    assert all({c.spec.seed for c in grid.cells if c.size == cell.size} == {0, 1} for cell in grid.cells), (
        "the null control needs two seeds at every size"
    )
    shared = {cell.spec.spec_id for cell in load_grid("demo").cells}
    assert len(shared & {cell.spec.spec_id for cell in grid.cells}) == 7
