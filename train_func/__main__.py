"""``python -m train_func``: the commands of client/cli."""

import sys

from train_func.client.cli import main

if __name__ == "__main__":
    sys.exit(main())
