"""What runs beside the notebook; never torch."""

import sys
from functools import partial

from train_func.errors import print_above_package

sys.excepthook = partial(print_above_package, sys.excepthook)
