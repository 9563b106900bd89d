"""The error a person is meant to read: one line, no traceback, exit code 2."""


class UserError(ValueError):
    """Wrong usage or input.

    The message is one line that names the thing, says what is wrong and what to do.
    Every ``python -m`` command prints it without a traceback and exits with code 2.
    """
