"""The doctor of a notebook: one report of what a submission to the cluster would lack."""

import os
import subprocess
import sys

from tests.messages import unnamed


def doctor(*arguments, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TRAIN_FUNC_", "KUBE"))}
    command = [sys.executable, "-m", "train_func", *arguments]
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=300, check=False)


def test_everything_that_is_missing_is_told_at_once_with_its_remedy(tmp_path):
    done = doctor("doctor", HOME=str(tmp_path))
    assert done.returncode == 3
    found = [line.split(": ") for line in done.stdout.splitlines()]
    assert [line[:2] for line in found[:2] + found[3:]] == [
        ["FAIL  cluster", "store"],
        ["FAIL  cluster", "image"],
        ["FAIL  store", "as above"],
    ]
    assert unnamed(found[1], "Cluster(image='registry/name", "TRAIN_FUNC_IMAGE") == []
    assert found[2][0] == "FAIL  cluster"
    assert unnamed(found[2], "KUBECONFIG", "Cluster(context=...)") == []
    assert done.stderr == ""


def test_what_it_quotes_is_shown_and_not_obeyed(tmp_path):
    kubeconfig = tmp_path / "config\x1b[2J"
    kubeconfig.write_text("contexts: []")
    done = doctor("doctor", HOME=str(tmp_path), KUBECONFIG=str(kubeconfig))
    assert "\\x1b[2J" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_wrong_option_is_a_finding_and_not_the_end_of_the_report(tmp_path):
    done = doctor("doctor", HOME=str(tmp_path), TRAIN_FUNC_CPU="abc")
    assert done.returncode == 3
    assert "FAIL  cluster: " in done.stdout
    assert "FAIL  store: " in done.stdout
    assert "abc" in done.stdout
