"""`python -m dynavit`: the command line, also where the script directory is not on the path."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
