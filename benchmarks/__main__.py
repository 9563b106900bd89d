"""``python -m benchmarks [name ...]``: run benchmark modules, print their rows, write runs/bench.json.

A benchmark is a module of this folder with ``rows() -> list[dict]``. Exit code 0: every bar met; 1: some
missed; 2: wrong usage.
"""

import argparse
import importlib
import pkgutil
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import benchmarks
from attnres.files import write_json
from benchmarks.timing import machine

TARGET = Path("runs/bench.json")


def discovered() -> dict[str, ModuleType]:
    """Benchmark modules by name."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__"]
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "rows")}


def shown(row: dict[str, Any]) -> str:
    """One line of the table."""
    spread = "" if row["lo"] == row["hi"] else f"[{row['lo']:.3f}, {row['hi']:.3f}]"
    bar = "" if row["bar"] is None else f"bar {row['bar']:g}: {'met' if row['met'] else 'MISSED'}"
    return f"{row['name']:<72} {row['value']:>10.3f}  {spread:<18} {bar}".rstrip()


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    known = discovered()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(known)}; default: all")
    names = parser.parse_args(arguments).names or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown benchmark '{unknown[0]}': known are {', '.join(known)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    print(machine(), flush=True)
    found: list[dict[str, Any]] = []
    for name in names:
        begin = time.monotonic()
        own = known[name].rows()
        for row in own:
            print(shown(row), flush=True)
        print(f"  {name}: {time.monotonic() - begin:.0f} s", flush=True)
        found += own
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    write_json(TARGET, {"machine": machine(), "rows": found})
    missed = sum(row["met"] is False for row in found)
    print(f"{len(found)} rows in {TARGET}; {missed} bars missed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
