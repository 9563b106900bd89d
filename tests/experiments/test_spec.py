import hashlib
import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from attnres.errors import one_line
from attnres.stream_spec import StreamSpec
from experiments.spec import RunSpec


def test_json_round_trip_is_byte_for_byte(spec_of):
    spec = spec_of(stream=StreamSpec(name="block_attnres", options={"num_blocks": 2}))
    text = spec.canonical_json()
    assert RunSpec.model_validate_json(text).canonical_json() == text


def test_no_run_without_a_cooldown_was_renamed_by_it(spec_of):
    """Identities of the demo as they were when its runs were trained."""
    from sweeps.grid import load_grid

    ids = [cell.spec.spec_id for cell in load_grid("demo").cells]
    assert ids[0] == "c51d471194d7"
    assert hashlib.sha256("".join(ids).encode()).hexdigest()[:16] == "ca86ac159d2e44b0"
    assert "cooldown" not in spec_of().canonical_json()
    branch = spec_of(schedule="wsd", cooldown=5)
    assert '"cooldown":5' in branch.canonical_json()
    assert RunSpec.model_validate_json(branch.canonical_json()) == branch
    assert (branch.stable_steps, spec_of().stable_steps) == (19, 24)


def test_spec_id_is_the_same_in_another_process_and_does_not_depend_on_key_order(spec_of):
    spec = spec_of()
    shuffled = dict(reversed(list(json.loads(spec.canonical_json()).items())))
    assert RunSpec.model_validate(shuffled).spec_id == spec.spec_id
    code = "import sys; from experiments.spec import RunSpec; print(RunSpec.model_validate_json(sys.argv[1]).spec_id)"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(shuffled)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == spec.spec_id


@pytest.mark.parametrize(
    "change",
    [{"lr": 0.011}, {"seed": 1}, {"data_seed": 1}, {"tokens": 25 * 512}, {"width": 18, "num_heads": 1},
     {"precision": "bf16"}, {"weight_decay": 0.0}, {"schedule": "wsd", "cooldown": 5}, {"numerics": 2}, {"stream": StreamSpec(name="full_attnres")}],
)  # fmt: skip
def test_whatever_can_change_a_result_changes_the_identity(spec_of, change):
    assert spec_of(**change).spec_id != spec_of().spec_id


def test_defaults_written_out_are_the_same_variant():
    bare = StreamSpec(name="block_attnres", options={"num_blocks": 2})
    assert StreamSpec(name="block_attnres", options=bare.options) == bare
    assert bare.variant == "block_attnres[num_blocks=2]"
    assert StreamSpec(name="additive").variant == "additive"


def test_arms_of_a_pair_share_their_pair_id_and_differ_in_the_stream_alone(spec_of):
    baseline = spec_of()
    variant = baseline.model_copy(update={"stream": StreamSpec(name="full_attnres")})
    assert variant.pair_id == baseline.pair_id == baseline.spec_id
    left, right = baseline.model_dump(), variant.model_dump()
    assert {key for key in left if left[key] != right[key]} == {"stream"}


@pytest.mark.parametrize(
    ("change", "named"),
    [({"tokens": 1000}, "whole number of batches"), ({"batch_tokens": 500}, "multiple of seq_len"),
     ({"warmup": 24}, "warmup of 24 steps"), ({"num_heads": 3}, "num_heads 3"), ({"width": 15, "num_heads": 3}, "odd"),
     ({"lr": float("nan")}, "lr"), ({"budget": float("inf")}, "budget"),
     ({"schedule": "wsd"}, "schedule wsd needs a cooldown"), ({"cooldown": 4}, "cooldown 4: schedule cosine has none"),
     ({"schedule": "wsd", "cooldown": 0}, "cooldown"),
     ({"schedule": "wsd", "cooldown": 22}, "warmup of 3 and cooldown of 22 steps are more than the run's 24")],
)  # fmt: skip
def test_impossible_specs_are_refused_by_name(spec_of, change, named):
    with pytest.raises(ValidationError, match=named):
        spec_of(**change)


def test_unknown_stream_lists_the_known_ones():
    with pytest.raises(
        ValidationError, match="unknown stream 'atnres'.*additive.*block_attnres.*full_attnres"
    ):
        StreamSpec(name="atnres")


@pytest.mark.parametrize(
    ("stream", "told"),
    [({"name": "block_attnres", "options": {"num_block": 4}},
      "stream block_attnres: unknown option num_block; it knows num_blocks, block_size, boundaries"),
     ({"name": "additive", "options": {"blocks": 4}}, "stream additive: unknown option blocks; it knows none"),
     ({"name": "block_attnres", "options": {"num_blocks": 0}},
      "stream block_attnres: num_blocks: Input should be greater than or equal to 1 (got 0)"),
     ({"name": "additive", "options": ["a"]}, "stream additive: options ['a'] are not an object of names and values"),
     ({"name": "additive", "options": ""}, "stream additive: options '' are not an object of names and values"),
     ({"name": ["x"]}, "stream ['x']: not a name; known are "),
     ({"nam": "additive"}, "stream: unknown nam; StreamSpec knows name, options")],
)  # fmt: skip
def test_wrong_streams_are_one_line_that_names_stream_and_option(spec_of, stream, told):
    fields = {**json.loads(spec_of().canonical_json()), "stream": stream}
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate_json(json.dumps(fields))
    assert one_line(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("part", "name", "value", "told"),
    [("shape", "widht", 8, "shape: unknown widht; ModelShape knows depth, width, "),
     ("train", "rate", 1, "train: unknown rate; TrainSpec knows recipe, batch_tokens, lr, "),
     ("shape", "depth", 0, "shape.depth: Input should be greater than or equal to 1 (got 0)"),
     ("train", "schedule", "cos", "train.schedule: Input should be 'cosine', 'linear', 'constant' or 'wsd' (got 'cos')")],
)  # fmt: skip
def test_misspelt_fields_and_values_are_named_with_what_is_known(spec_of, part, name, value, told):
    fields = json.loads(spec_of().canonical_json())
    fields[part][name] = value
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(fields)
    assert one_line(caught.value).startswith(told)


@pytest.mark.parametrize("name", ["seed", "data_seed"])
def test_seeds_that_would_repeat_smaller_ones_are_refused(spec_of, name):
    """Orders are drawn from 64 bits: 2**70 would give the order of 0."""
    spec_of(**{name: 2**63 - 1})
    with pytest.raises(ValidationError, match=f"{name}\n.*9223372036854775807"):
        spec_of(**{name: 2**70})


def test_operational_settings_are_not_part_of_a_spec(spec_of):
    with pytest.raises(ValidationError, match="threads"):
        RunSpec.model_validate({**spec_of().model_dump(), "threads": 4})
