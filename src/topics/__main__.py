"""`python -m topics`: the command line, where the script `topics` is not on the path."""

import sys

from topics.cli import main

if __name__ == "__main__":
    sys.exit(main())
