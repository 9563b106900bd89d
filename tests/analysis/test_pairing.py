"""Arms differ in the arm only; lost cells are lost to both arms and told."""

import pytest

from analysis.comparison import Comparison
from analysis.counts import count_runs
from analysis.multipliers.base import RefusalError
from analysis.pairing import MUST_AGREE, match_pairs
from analysis.study import Study
from attnres.errors import UserError
from tests.analysis.studies import BASELINE, VARIANT, ask, made_study

OTHER_VALUE = {
    "dataset": "other",
    "schedule": "linear",
    "recipe": "other",
    "device": "cuda",
    "precision": "bf16",
}
CAN_DIFFER = [key for key in MUST_AGREE if key not in ("tied",)]


def spoil(study: Study, key: str, variant: str = VARIANT, rows: int = 1) -> None:
    """Give ``rows`` runs of ``variant`` another value of ``key``."""
    at = study.runs.index[study.runs["variant"] == variant][:rows]
    if key in OTHER_VALUE:
        study.runs.loc[at, key] = OTHER_VALUE[key]
    else:
        study.runs.loc[at, key] = study.runs.loc[at, key] * 2 + 1


@pytest.mark.parametrize("key", CAN_DIFFER)
def test_s15_any_other_difference_is_refused_by_name(tmp_path, key):
    study = made_study(tmp_path)
    spoil(study, key)
    status = ask(study).row()["status"]
    assert status.startswith(
        f"refused: pairs differ in more than the stream: {key} differs in 1 of 7 pairs: "
    )
    assert f"--allow {key}" in status


def test_s15_both_values_are_named_and_allowing_leaves_a_note(tmp_path):
    study = made_study(tmp_path)
    at = study.runs.index[study.runs["variant"] == VARIANT]
    study.runs.loc[at, "seq_len"] = 1024
    assert "1024 (" in ask(study).row()["status"] and "against 128 (" in ask(study).row()["status"]
    allowed = ask(study, allow=("seq_len",))
    assert allowed.estimate is not None
    assert any("seq_len differs in 7 of 7 pairs: 1024" in note for note in allowed.arms.notes)


def test_allowing_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(UserError, match="--allow sequence"):
        Comparison(made_study(tmp_path), ("sequence",))


def test_differences_that_move_last_digits_are_notes(tmp_path):
    study = made_study(tmp_path)
    study.runs.loc[study.runs["variant"] == VARIANT, "git_sha"] = "1" * 40
    found = ask(study)
    assert found.estimate is not None
    assert any(note.startswith("git_sha differs") for note in found.arms.notes)


def lose(
    study: Study, size_depth: int, variant: str = VARIANT, reason: str = "incomplete", status: str = "failed"
):
    at = (study.runs["variant"] == variant) & (study.runs["depth"] == size_depth)
    study.runs.loc[at, ["excluded", "exclusion_reason", "status"]] = [True, reason, status]


def test_w13_the_largest_cell_lost_in_one_arm_is_lost_to_both_and_told(tmp_path):
    study = made_study(tmp_path, sizes=6)
    lose(study, 7)
    found = ask(study)
    assert found.arms.sizes == ("d2w64", "d3w96", "d4w128", "d5w160", "d6w192")
    assert found.arms.compute_baseline.max() < 2e13
    assert any(
        "unequal coverage: full_attnres lacks d7w224 seed 0 (incomplete)" in n for n in found.arms.notes
    )
    counts = count_runs(study)
    assert counts["by_arm"][VARIANT]["failed"] == 1
    assert counts["by_arm"][BASELINE]["failed"] == 0
    assert "full_attnres: 1 of 8 planned runs are left out (at d7w224)" in counts["notes"]


def test_unfinished_cells_never_enter_and_may_leave_too_few(tmp_path):
    study = made_study(tmp_path)
    for depth in (2, 3):
        lose(study, depth, status="diverged", reason="diverged")
    assert ask(study).row()["status"].startswith("refused: too few sizes: 3 with finished pairs")


def test_an_arm_with_no_finished_run_is_refused(tmp_path):
    study = made_study(tmp_path)
    for depth in range(2, 7):
        lose(study, depth)
    assert ask(study).row()["status"] == (
        "refused: no finished pairs: 0 finished runs of full_attnres and 7 of additive make none"
    )


def test_pairs_stand_row_by_row(tmp_path):
    study = made_study(tmp_path)
    pairs = match_pairs(study.cells, BASELINE, VARIANT)
    assert list(pairs.left["seed"]) == list(pairs.right["seed"])
    assert list(pairs.left["size"]) == list(pairs.right["size"])
    assert set(pairs.left["variant"]) == {BASELINE}
    assert list(pairs.left["budget"]) == sorted(pairs.left["budget"])


def test_pairs_of_other_roles_stay_out(tmp_path):
    study = made_study(tmp_path)
    with pytest.raises(RefusalError, match="no finished pairs"):
        match_pairs(study.cells, BASELINE, VARIANT, role=("rate",))
