"""The template forks only while that is safe: with one thread, and before CUDA was touched."""

import subprocess
import sys

import pytest

from tests.messages import unnamed

ASKS = """
import sys, types
touched = {touched}
sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: touched))
from train_func.worker.rank.template import why_not
print(why_not())
"""


@pytest.mark.parametrize(("touched", "named"), [(False, None), (True, "CUDA")])
def test_a_process_that_has_touched_cuda_is_not_forked(touched, named):
    program = ASKS.format(touched=touched)
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert unnamed(said, named) == [] if named else said == ""
