"""Imports go one way: attnres <- experiments <- sweeps; analysis reads tables and never imports the model."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Package -> what it may import of the project besides itself.
ALLOWED = {
    "attnres": (),
    "experiments": ("attnres",),
    "sweeps": ("attnres", "experiments", "analysis.power", "analysis.plan_file", "analysis.outlook"),
    "analysis": ("attnres.command_line", "attnres.errors", "attnres.files", "attnres.registry"),
}
HEAVY = ("torch", "lightning", "mlflow")


def imports_of(path: Path) -> set[str]:
    """Dotted names that ``path`` imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def starts_with(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_go_one_way(package):
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for name in sorted(imports_of(path)):
            if not any(starts_with(name, other) for other in ALLOWED) or starts_with(name, package):
                continue
            if not any(starts_with(name, allowed) for allowed in ALLOWED[package]):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_analysis_names_no_heavy_package_but_where_runs_are_imported():
    """mlflow is imported inside `import_mlflow` alone."""
    users = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "analysis").rglob("*.py")
        if any(starts_with(name, heavy) for name in imports_of(path) for heavy in HEAVY)
    }
    assert users == {"analysis/importing.py"}


def test_this_test_sees_an_import_inside_a_function(tmp_path):
    source = tmp_path / "module.py"
    source.write_text("def f():\n    from torch import nn\n    import mlflow.tracking\n")
    assert imports_of(source) == {"torch.nn", "mlflow.tracking"}


@pytest.mark.parametrize("command", ["report", "table", "power"])
def test_commands_of_analysis_load_no_heavy_package(tmp_path, command):
    """`python -m analysis report` from plan, runs.csv and curves alone: torch, lightning, mlflow stay out."""
    study = tmp_path / "study"
    arguments = {
        "report": ["report", "--study", str(study)],
        "table": ["table", "--study", str(study), "--runs", str(tmp_path / "runs")],
        "power": ["power"],
    }[command]
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.analysis.planted import planted_runs, planted_study\n"
        f"study = Path({str(study)!r})\n"
        f"planted_runs(study, Path({str(tmp_path / 'runs')!r}), sizes=4, seeds=1)\n"
        "planted_study(study, sizes=4, seeds=1)\n"
        "from analysis.commands import main\n"
        f"code = main({arguments!r})\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print('loaded', loaded)\n"
        "sys.exit(code or len(loaded))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
