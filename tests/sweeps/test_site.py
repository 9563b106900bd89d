from pathlib import Path

import pytest

from attnres.errors import UserError
from sweeps.site import Site, read_site


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my_site.toml"
    path.write_text(text)
    return path


def test_a_site_is_read_whole(tmp_path):
    path = write(
        tmp_path,
        'partition = "gpu"\naccount = "p1"\nminutes = 240\ngpus = 1\nmemory_gb = 16.5\narray_limit = 500\n'
        'setup = ["module load cuda"]\n[sbatch]\nreservation = "tuesday"\n',
    )
    site = read_site(path)
    assert (site.partition, site.account, site.minutes, site.gpus, site.array_limit) == (
        "gpu",
        "p1",
        240,
        1,
        500,
    )
    assert site.setup == ("module load cuda",) and site.sbatch == {"reservation": "tuesday"}


def test_site_toml_is_the_default_and_may_be_absent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_site(None) == Site()
    (tmp_path / "site.toml").write_text("minutes = 7\n")
    assert read_site(None).minutes == 7


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("partitoin = 'gpu'", "unknown partitoin; Site knows partition, account"),
        ("minutes = 'two hours'", "minutes: Input should be a valid integer"),
        ("minutes = 0", "minutes: Input should be greater than or equal to 1"),
        ("array_limit = 0", "array_limit: Input should be greater than or equal to 1"),
        ("minutes = 1\nsignal_seconds = 60", "signal_seconds 60 is not below the limit of 1 minutes"),
        ("[sbatch]\njob_name = 'mine'", "sbatch option job-name is set by the launcher"),
        ("minutes = = 3", "Invalid value"),
    ],
)  # fmt: skip
def test_a_wrong_site_is_one_line_that_names_file_and_place(tmp_path, text, named):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_site(path)
    assert str(caught.value).startswith(f"{path}: ") and named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_site_that_is_named_must_be_there(tmp_path):
    with pytest.raises(UserError, match="nowhere.toml: cannot be read"):
        read_site(tmp_path / "nowhere.toml")
