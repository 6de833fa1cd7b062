"""``python -m accy_async``: the same as the command ``accy-async``."""

import sys

from accy_async.cli import main

if __name__ == "__main__":
    sys.exit(main())
