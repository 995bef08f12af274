"""What continuous integration calls, in which order, and that it takes the cluster down however the tests end."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOLD = '#!/usr/bin/env bash\necho "$(basename "$0")" >>"$(dirname "$0")/told"\n'
MAKEFILE = """
test-cluster: ; @echo "test-cluster on $$KUBECONFIG by $(BUILDER)" >>told; $(FAILING)
check test: ; @echo $@ >>told
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose commands only tell that they were called, beside a testbed that does the same."""
    testbed = tmp_path / "shared/testbed"
    testbed.mkdir(parents=True)
    for name, more in {"build": "", "up": "echo export KUBECONFIG=/the/testbed", "down": ""}.items():
        (testbed / name).write_text(TOLD.replace('"$(dirname "$0")/told"', f"{tmp_path}/checkout/told") + more)
        (testbed / name).chmod(0o755)
    folder = tmp_path / "checkout"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy2(ROOT / ".ci/run", folder / ".ci/run")
    (folder / "Makefile").write_text(MAKEFILE)
    return folder


def run(checkout, **settings):
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **settings}
    done = subprocess.run(
        [checkout / ".ci/run"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done, (checkout / "told").read_text().splitlines()


def on_the_testbed(checkout):
    """The tests on its cluster, with images that its own program builds."""
    return f"test-cluster on /the/testbed by {checkout.parent}/shared/testbed/image"


def test_everything_is_called_and_the_cluster_goes_down_before_and_after(checkout):
    done, told = run(checkout)
    assert done.returncode == 0, done.stderr
    assert told == ["build", "check", "test", "down", "up", on_the_testbed(checkout), "down"]


def test_failing_tests_fail_and_the_cluster_goes_down_all_the_same(checkout):
    done, told = run(checkout, FAILING="false")
    assert done.returncode != 0
    assert told[-2:] == [on_the_testbed(checkout), "down"]


def test_without_a_testbed_it_says_plainly_what_did_not_run(checkout):
    shutil.rmtree(checkout.parent / "shared")
    done, told = run(checkout)
    assert done.returncode == 0
    assert told == ["check", "test"]
    assert "ALL TESTS ON A CLUSTER DID NOT RUN" in done.stdout
