"""Whatever is wrong in a person's grid file is one line with the file and its line, and nothing is written."""

from pathlib import Path

import pytest

from attnres.streams.base import STREAMS
from experiments.data.base import DATASETS
from sweeps.__main__ import main
from sweeps.grid import GRIDS

HEAD = """from attnres.shape import ModelShape
from attnres.stream_spec import StreamSpec
from sweeps.grid import ADDITIVE, GRIDS, Cell, Grid, Rung, pairs
ARMS = (ADDITIVE, StreamSpec(name="full_attnres"))
def cells(tokens_per_param=8, arms=ARMS, recipe="smoke", dataset="synthetic", seeds=(0,), **changes):
    fields = {"depth": 2, "width": 8, "num_heads": 2, "mlp_width": 16, "vocab_size": 64, "seq_len": 32}
    rung = Rung(ModelShape(**(fields | changes)), tokens_per_param, seeds=seeds)
    return tuple(pairs(rung, arms=arms, dataset=dataset, recipe=recipe))
"""
"""Eight lines; what follows begins at line 9."""


def registered(name: str, result: str) -> str:
    return f"{HEAD}@GRIDS.register({name!r})\ndef make():\n    return {result}\n"


def grid(name: str, cells: str, arms: str = "ARMS") -> str:
    return registered(name, f"Grid({name!r}, '', {arms}, {cells})")


BROKEN = {
    "syntax": ("x = (\n", "syntax.py line 1: SyntaxError: '(' was never closed"),
    "absent": ("\nimport nowhere_at_all\n", "absent.py line 2: ModuleNotFoundError: No module named 'nowhere_at_all'"),
    "raises": ("def f():\n    return 1 / 0\nf()\n", "raises.py line 2: ZeroDivisionError"),
    "leaves": ("raise SystemExit(3)\n", "leaves.py line 1: SystemExit: ends the program (3)"),
    "binary": ("x = '\0'\n", "binary.py: "),
    "taken": (registered("demo", "None"), "taken.py line 9: grid 'demo' is registered twice"),
    "nothing": (registered("ref_nothing", "None"), "grid 'ref_nothing': its function returns NoneType, not a Grid"),
    "pieces": (grid("ref_pieces", "(1,)"), "has 1 among its cells"),
    "empty": (grid("ref_empty", "()"), "has no cells"),
    "armless": (grid("ref_armless", "cells()", "()"), "arms must be StreamSpecs"),
    "other_arm": (grid("ref_other_arm", "cells()", "(ADDITIVE,)"), "is of none of its arms"),
    "argument": (registered("ref_argument", "1").replace("make()", "make(size)"), "missing 1 required positional argument"),
    "namesake": (registered("ref_namesake", "Grid('demo', '', ARMS, cells())"), "calls itself 'demo'"),
    "escape": (grid("../../escaped", "cells()"), "names a folder of results"),
    "slash": (grid("a/b", "cells()"), "names a folder of results"),
    "not_a_number": (grid("ref_nan", "cells(float('nan'))"), "not_a_number.py line 7: tokens_per_param nan: must be"),
    "infinite": (grid("ref_inf", "cells(float('inf'))"), "tokens_per_param inf: must be"),
    "none": (grid("ref_zero", "cells(0)"), "tokens_per_param 0: must be"),
    "negative": (grid("ref_negative", "cells(-3)"), "tokens_per_param -3: must be"),
    "endless": (grid("ref_endless", "cells(1e300)"), "tokens: Input should be less than or equal to"),
    "seedless": (grid("ref_seedless", "cells(seeds=())"), "seeds: a rung needs at least one"),
    "recipe": (grid("ref_recipe", "cells(recipe='smok')"), "recipe.py line 8: unknown recipe 'smok'"),
    "misspelt": (grid("ref_misspelt", "cells(widht=3)"), "misspelt.py line 7: unknown widht; ModelShape knows depth"),
    "vocabulary": (grid("ref_vocabulary", "cells(vocab_size=70000)"), "vocab_size 70000: data set synthetic has tokens of"),
    "too_few": (grid("ref_too_few", "cells(vocab_size=100, dataset='speeches')"), "data set speeches is text; use 256"),
    "option": (HEAD + "StreamSpec(name='block_attnres', options={'num_block': 2})\n",
               "option.py line 9: stream block_attnres: unknown option num_block; it knows num_blocks"),
    "boundaries": (
        HEAD + "B = (ADDITIVE, StreamSpec(name='block_attnres', options={'boundaries': (1, 9)}))\n"
        "@GRIDS.register('ref_boundaries')\ndef make():\n    return Grid('ref_boundaries', '', B, cells(arms=B))\n",
        "stream block_attnres[boundaries=[1, 9]] at depth 2: boundaries [1, 9] must increase",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_grid_is_one_line_with_its_file_and_nothing_is_written(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content, told = BROKEN[name]
    Path(f"{name}.py").write_text(content)
    assert main(["plan", f"{name}.py"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: {name}.py: ") and line.count("\n") == 1
    assert told in line
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.py"]


def test_a_folder_named_like_a_grid_is_refused(tmp_path, capsys):
    (tmp_path / "folder.py").mkdir()
    assert main(["plan", str(tmp_path / "folder.py")]) == 2
    assert "folder.py: is a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("registry", "line", "told"),
    [
        (STREAMS, "STREAMS.register('ref_own')(STREAMS.get('additive'))", "registers stream 'ref_own'"),
        (DATASETS, "DATASETS.register('ref_own')(DATASETS.get('synthetic'))", "registers data set 'ref_own'"),
    ],
)
def test_what_the_processes_of_cells_would_not_know_is_refused(
    registry, line, told, tmp_path, monkeypatch, capsys
):
    registry.names()
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(GRIDS, "_entries", {name: GRIDS.get(name) for name in GRIDS.names()})
    path = tmp_path / "own.py"
    imports = "from attnres.streams.base import STREAMS\nfrom experiments.data.base import DATASETS\n"
    path.write_text(imports + grid("ref_own_grid", "cells()") + line + "\n")
    assert main(["plan", str(path), "--results", str(tmp_path / "results")]) == 2
    line = capsys.readouterr().err
    assert told in line and "in a file of its own in" in line and line.count("\n") == 1
    assert not (tmp_path / "results").exists()
