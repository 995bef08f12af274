"""Nothing that is shown, written or run here puts a secret on a command line or has a person type one there."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
# On a command line, where the list of processes and the shell's history keep it; a name in braces is only a variable.
FORBIDDEN = {
    "a Secret's value as an argument": r"--from-literal",
    "a token as an argument": r"--token[= ]",
    "a password as an argument": r"--password[= ]",
    "a key typed behind export": r"export\b.*\b\w*(SECRET|PASSWORD|TOKEN)\w*=\.\.\.",
    "keys as arguments of mc": r"mc alias set \S+ \S+ \S",
}


def test_no_command_carries_a_secret_as_an_argument():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    own = Path(__file__).relative_to(ROOT).as_posix()
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if name == own or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        found += [f"{name}: {what}" for what, pattern in FORBIDDEN.items() if re.search(pattern, text)]
    assert found == []
