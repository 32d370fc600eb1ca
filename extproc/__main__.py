"""`python -m extproc` is `kvring`."""

import sys

from extproc.cli import main

if __name__ == "__main__":
    sys.exit(main())
