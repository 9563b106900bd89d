"""``python -m analysis``: the stages from the table to the report, one sub-command each."""

import sys

from analysis.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
