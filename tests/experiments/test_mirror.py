"""What of a run goes into MLflow, without a store."""

from experiments import mirror
from experiments.spec import RunSpec
from tests.experiments.mirrored import rows


def test_m20_equal_specs_have_equal_parameters(spec_of):
    assert mirror.params(spec_of()) == mirror.params(RunSpec.model_validate_json(spec_of().canonical_json()))
    assert all(" at 0x" not in value for value in mirror.params(spec_of()).values())
    assert mirror.params(spec_of()) != mirror.params(spec_of(lr=0.02))


def test_m21_few_keys_and_no_endless_series(spec_of):
    spec = spec_of(tokens=100_000 * 512)
    points, _ = mirror.points(rows(1, 100_000), spec)
    steps = {key: [p.step for p in points if p.key == key] for key in mirror.SERIES}
    assert len(mirror.SERIES) + len(mirror.SUMMARY) < 60
    assert len(steps["train_loss"]) >= 2000 and steps["train_loss"][0] == 1
    assert [p.step for p in points if p.key == "val_loss"] == [
        step for step in range(1, 100_001) if step % 6 == 0
    ]
    sparse = [{key: value for key, value in row.items() if key != "val_loss"} for row in rows(1, 100_000)]
    assert len(mirror.points(sparse, spec)[0]) <= 3 * (mirror.MOST_POINTS + 2)
    assert mirror.points(sparse, spec)[0][-1].step == 100_000
