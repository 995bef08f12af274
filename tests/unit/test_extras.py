"""An extra is installed from where the package came from: whoever takes its name on an index is not."""

import pytest

from train_func.client.packages import inventory

COMMIT = "5" * 40


class Installed:
    def __init__(self, text):
        self._text = text

    def read_text(self, name):
        return self._text if name == "direct_url.json" else None


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ('{"url": "file:///clone", "dir_info": {"editable": true}}', "train-func[local] @ file:///clone"),
        (
            f'{{"url": "https://host/it.git", "vcs_info": {{"vcs": "git", "commit_id": "{COMMIT}"}}}}',
            f"train-func[local] @ git+https://host/it.git@{COMMIT}",
        ),
        (None, "/path/to/train_func[local]"),
        ("{}", "/path/to/train_func[local]"),
    ],
)
def test_the_command_names_where_this_package_came_from(monkeypatch, text, source):
    monkeypatch.setattr(inventory.metadata, "distribution", lambda name: Installed(text))
    assert inventory.pip_install("local").startswith(f"pip install '{source}'")
