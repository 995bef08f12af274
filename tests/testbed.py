"""The testbed's folder, as TRAIN_FUNC_TESTBED names it: .ci/run does; without it, what needs it is skipped or fails."""

import os
from pathlib import Path

TESTBED = Path(os.environ.get("TRAIN_FUNC_TESTBED") or "/nonexistent/TRAIN_FUNC_TESTBED-is-not-set")
