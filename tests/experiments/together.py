"""Run by torchrun in two processes (test_processes.py): each trains its share of every cell that is listed."""

import json
import sys
from pathlib import Path

from experiments.run import run
from experiments.settings import Settings
from experiments.spec import RunSpec

if __name__ == "__main__":
    for spec, settings in json.loads(Path(sys.argv[1]).read_text()):
        run(RunSpec.model_validate(spec), Settings.model_validate(settings))
