"""An API server that fails once, anywhere: install.sh takes no missing answer for an empty one, and harms nothing."""

import os
import random

import pytest

from tests.cluster import api_in_front
from tests.install.objects import everything

# Which of its requests fails, one a run: a new installation asks about 150 times.
MOST = int(os.environ.get("TRAIN_FUNC_TEST_LOST_ANSWERS", "1"))
NUMBERS = sorted(random.Random(7).sample(range(1, 150), MOST))
ENDS = (0, 3, 4)


@pytest.mark.parametrize("number", NUMBERS)
def test_installing_again_changes_nothing(installed, admin, tmp_path, number):
    before = everything(admin)
    with api_in_front.failing_at(number, admin.kubeconfig, tmp_path) as kubeconfig:
        done = installed("install", KUBECONFIG=str(kubeconfig))
    assert done.returncode in ENDS, done.stderr
    assert everything(admin) == before


@pytest.mark.slow  # test_install loses one answer to an uninstallation
@pytest.mark.parametrize("number", NUMBERS)
def test_uninstalling_keeps_the_volume_and_what_is_not_ours_and_can_be_repeated(installer, admin, tmp_path, number):
    installer.must("install")
    admin("create", "secret", "generic", "hf-secrets", "--namespace=train-func")
    with api_in_front.failing_at(number, admin.kubeconfig, tmp_path) as kubeconfig:
        done = installer("uninstall", KUBECONFIG=str(kubeconfig))
    assert done.returncode in ENDS, done.stderr
    installer("uninstall")
    admin("delete", "secret", "hf-secrets", "--namespace=train-func")
    assert admin.run("get", "secret", "myminio", "--namespace=kubeflow").returncode == 0
    claim = admin.json("get", "persistentvolumeclaim", "data-myminio-0", "--namespace=kubeflow")
    assert "deletionTimestamp" not in claim["metadata"]
