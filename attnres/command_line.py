"""What the ``python -m`` commands share: every refusal is one line and a code.

0 done, 1 some cells failed, 2 wrong usage or input, 130 interrupted; analysis adds its own.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from pydantic import ValidationError

from attnres.errors import UserError, one_line
from attnres.json_files import reason

WRONG_INPUT, INTERRUPTED = 2, 130


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(WRONG_INPUT, f"error: {' '.join(message.split())}; `{self.prog} --help` tells more\n")


def at_least(least: int, options: argparse.Namespace, *names: str) -> None:
    """Refuse (``UserError``) options that count something, are given, and are below ``least``."""
    for name in names:
        value = getattr(options, name, None)
        if value is not None and value < least:
            raise UserError(f"--{name} {value}: must be at least {least}")


def execute(command: Callable[[], int]) -> int:
    """Run ``command`` -> its exit code; an error that a person can mend is one line on stderr."""
    try:
        return command()
    except (UserError, ValidationError) as error:
        return _refuse(one_line(error))
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`): nothing more can be told, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return INTERRUPTED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _refuse(
            f"{place}{reason(error)}; check the disk and who may read and write there, "
            "then start the same command again: it continues"
        )
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return INTERRUPTED


def _refuse(message: str) -> int:
    try:
        print(f"error: {message}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # stderr is a log on a full disk: the code must do
    return WRONG_INPUT
