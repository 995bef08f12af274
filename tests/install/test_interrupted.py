"""Killed in any step and run again, install.sh ends ready."""

import pytest

from tests.cluster.kubectl import Kubectl
from tests.install.installer import Installer
from tests.install.store import SECRETS, key_of

pytestmark = pytest.mark.slow  # one kill, in the step in which a key is exchanged, is in test_install
STEPS = ["namespaces", "s3", "operator", "jobs", "jupyterhub", "verify"]


def test_an_installation_that_is_killed_in_every_step_goes_on_where_it_is_needed(
    installer: Installer, admin: Kubectl
) -> None:
    installer("uninstall", "--purge")
    for step in STEPS:
        installer.killed_at(rf"\[\d+/\d+\] {step}")
    installer.must("install")
    assert "nothing was changed" in installer.must("install")
    left = installer.files
    assert "kind: StatefulSet" in left  # of a run that was killed before it could tidy up
    assert not [value for where in SECRETS for value in key_of(admin, *where) if value in left]
