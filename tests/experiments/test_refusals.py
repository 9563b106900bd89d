"""What a person or a broken disk does to ``python -m experiments``: one line, a code, nothing left behind."""

import errno
import json
import os
import socket
from pathlib import Path

import pytest

from attnres import command_line, files
from attnres.stream_spec import StreamSpec
from experiments.__main__ import main
from experiments.record import read_record
from experiments.run import run


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys, settings):
    """Run ``python -m experiments run`` in an empty folder -> its one line; the code must be 2."""
    monkeypatch.chdir(tmp_path)
    Path("settings.json").write_text(settings.model_dump_json())

    def check(spec: str = "spec.json", *more: str) -> str:
        assert main(["run", spec, *(more or ("--settings", "settings.json"))]) == 2
        told = capsys.readouterr()
        assert told.err.count("\n") == 1 and told.err.startswith("error: ") and told.out == ""
        return told.err

    return check


def write_spec(spec, **changes) -> None:
    Path("spec.json").write_text(json.dumps({**json.loads(spec.canonical_json()), **changes}))


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "spec.json: Invalid JSON"), (b"[]", "spec.json: Input should be an object"),
     (b"\xff\xfe{", "spec.json: damaged (not UTF-8 text)"), (b"{}", "spec.json: shape: Field required"),
     (b'{"shape": 5', "spec.json: Invalid JSON"), (None, "spec.json: cannot be read (Is a directory)")],
)  # fmt: skip
def test_a_spec_that_cannot_be_read_is_named(refused, content, told):
    path = Path("spec.json")
    path.mkdir() if content is None else path.write_bytes(content)
    assert told in refused()
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"numerics": 999}, "numerics 999: this code computes numerics"),
     ({"dataset": "speech"}, "unknown data set 'speech': known are "),
     ({"data_seed": 2**70}, "data_seed: Input should be less than or equal to"),
     ({"stream": {"name": "block_attnres", "options": {"boundaries": [1, 99]}}}, "at depth 2: boundaries [1, 99] must"),
     ({"tokens": 13}, "tokens 13 is not a whole number of batches"),
     ({"dataset": 5}, "dataset: Input should be a valid string (got 5)")],
)  # fmt: skip
def test_a_spec_that_cannot_be_carried_out_makes_no_folder(refused, spec_of, changes, told):
    write_spec(spec_of(), **changes)
    assert told in refused()
    assert not Path("runs").exists()


def test_vocabularies_and_windows_that_the_data_do_not_have_make_no_folder(refused, spec_of):
    write_spec(spec_of(vocab_size=70_000))
    assert "vocab_size 70000: data set synthetic has tokens of 2 to 65536 kinds" in refused()
    write_spec(spec_of(seq_len=2**17, batch_tokens=2**17, tokens=2**19, warmup=1))
    assert "its validation split of 65536 tokens is shorter than one window" in refused()
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("settings_text", "told"),
    [('{"threads": 0}', "threads: Input should be greater than or equal to 1 (got 0)"),
     ('{"thread": 1}', "unknown thread; Settings knows runs, data, grid, "),
     ('{"device": "tpu"}', "device: Input should be 'auto', 'cpu' or 'cuda' (got 'tpu')"), ("", "Invalid JSON")],
)  # fmt: skip
def test_wrong_settings_are_named(refused, spec_of, settings_text, told):
    write_spec(spec_of())
    Path("mine.json").write_text(settings_text)
    line = refused("spec.json", "--settings", "mine.json")
    assert "mine.json" in line and told in line


@pytest.mark.parametrize(
    "arguments", [[], ["run"], ["rn"], ["run", "spec.json", "--thread", "1"], ["ui", "--port", "x"]]
)
def test_wrong_usage_is_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.count("\n") == 1 and "--help" in told


def test_a_port_in_use_is_named(tmp_path, capsys):
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for number in (port, 99_999):
            assert main(["ui", "--runs", str(tmp_path), "--port", str(number)]) == 2
            assert f"port {number}: cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [("record.json", b"{", "restore it, or delete it"), ("record.json", b"\xff", "not UTF-8 text"),
     ("record.json", b'{"spec_id": 1}', "and "),
     ("record.json", b'{"schema_version": 1, "spec_id": "a"}', "a record of schema 1, this code reads 3"), ("record.json", None, "cannot be read (Is a directory)"),
     ("spec.json", b"{", "is not the spec of run"), ("spec.json", b"\xff", "not UTF-8"), ("spec.json", None, "Is a directory"),
     ("attempts.json", b"[]", "attempts are then counted from 1"), ("attempts.json", b"\xff", "not UTF-8"),
     ("metrics.jsonl", b'{"step": 1}\nnonsense\n', "line 2 is damaged"), ("metrics.jsonl", b"\xff\n", "not UTF-8"),
     ("metrics.jsonl", b"[1]\n", "line 1 is damaged"), ("metrics.jsonl", None, "cannot be read (Is a directory)"),
     ("lock", None, "cannot be locked (")],
)  # fmt: skip
def test_a_damaged_file_of_a_run_is_named_and_left_as_it_is(refused, spec_of, settings, name, content, told):
    spec = spec_of(seed=1)
    write_spec(spec)
    path = settings.runs / spec.spec_id / name
    path.parent.mkdir(parents=True)
    path.mkdir() if content is None else path.write_bytes(content)
    line = refused()
    assert str(path) in line and told in line
    assert path.is_dir() if content is None else path.read_bytes() == content


def test_the_record_of_another_run_is_not_taken_for_this_one_s(refused, spec_of, settings):
    done = run(spec_of(tokens=4 * 512), settings)
    copied = spec_of(tokens=4 * 512, seed=1)
    (settings.runs / done.spec_id).rename(settings.runs / copied.spec_id)
    write_spec(copied)
    assert f"is the record of run {done.spec_id}" in refused()


@pytest.mark.parametrize("name", ["attempts.json", "record.json", "spec.json", "metrics.jsonl"])
def test_a_full_disk_is_one_line_that_names_the_file(refused, spec_of, settings, monkeypatch, name):
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    spec = spec_of(tokens=4 * 512)
    write_spec(spec)
    monkeypatch.setattr(files.os, "replace", full)
    if name == "metrics.jsonl":  # the run's own failure: recorded as such, code 1
        assert main(["run", "spec.json", "--settings", "settings.json"]) == 1
        log = (settings.runs / spec.spec_id / "log.txt").read_text()
        assert "error: OSError: [Errno 28] No space left on device: " in log and name in log
        return
    line = refused()
    assert "No space left on device" in line and spec.spec_id in line
    assert not list(settings.runs.rglob("*.tmp"))
    monkeypatch.undo()
    assert run(spec, settings).val_loss is not None


def test_damaged_checkpoints_are_named_on_the_terminal_and_in_the_log(spec_of, settings, capsys):
    spec = spec_of(tokens=4 * 512, stream=StreamSpec(name="full_attnres"))
    folder = settings.runs / spec.spec_id / "checkpoints"
    folder.mkdir(parents=True)
    for step in (1, 2):
        (folder / f"step-{step:08d}-0123456789abcdef.ckpt").write_bytes(b"not what it was")
    record = run(spec, settings)
    told, log = capsys.readouterr().err, (folder.parent / "log.txt").read_text()
    for text in (told, log):
        assert "step-00000001-0123456789abcdef.ckpt: damaged checkpoint" in text
        assert "step-00000002-0123456789abcdef.ckpt: damaged checkpoint" in text
        assert "no checkpoint is intact (2 damaged); the run starts again at step 1" in text
    assert read_record(folder.parent) == record


def test_output_that_nobody_reads_any_more_ends_quietly(monkeypatch, capsys):
    def gone() -> int:
        raise BrokenPipeError

    closed = []
    monkeypatch.setattr(command_line.os, "dup2", lambda *descriptors: closed.append(descriptors))
    assert command_line.execute(gone) == 130
    assert closed and capsys.readouterr().err == ""
