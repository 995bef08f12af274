"""What a script prints where it ends with an error: its own line and the message; of a real bug all frames."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys

from train_func import Local, Run, attach


def refused():
    {statement}


refused()
"""


def printed(tmp_path, statement):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(statement=statement))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize(
    "statement, words",
    [
        ("Run(workers=0)", "workers=0"),
        ("attach('absent', on=Local(store='file:///proc/absent/store'))", "/proc/absent"),  # raised from an OSError
    ],
)
def test_an_error_of_this_package_is_printed_below_the_lines_of_the_script_alone(tmp_path, statement, words):
    *frames, message = printed(tmp_path, statement).strip().splitlines()
    files = [line for line in frames if line.strip().startswith("File ")]
    assert len(files) == 2 and all("train.py" in line for line in files)
    assert statement in frames[-1] or statement in frames[-2]  # the last one, where Python marks a place in it
    assert words in message


def test_of_a_mistake_in_this_package_all_frames_are_printed(tmp_path):
    text = printed(tmp_path, "sys.modules['train_func.client.job'].backend_or_default = None; attach('absent')")
    assert "client/job.py" in text and "TypeError" in text


def test_an_interrupted_watching_prints_nothing_behind_its_own_words(tmp_path):
    assert printed(tmp_path, "from train_func.errors import WatchInterrupted; raise WatchInterrupted('words')") == ""
