"""Charts fetched before: install.sh with them, and with images built of the packages that they are made of.

TRAIN_FUNC_TEST_CHARTS names a folder with jupyterhub-VERSION.tgz and openebs-VERSION.tgz, as `helm package` makes them
of their sources, and with the binary provisioner-localpv built of its own. None of it is committed.
"""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster import in_cluster_minio, training_operator
from tests.cluster.kubectl import Kubectl
from tests.install.installer import ROOT, Installer
from tests.testbed import TESTBED

VARIABLE = "TRAIN_FUNC_TEST_CHARTS"
IMAGES = Path(__file__).with_name("images")
BUILD = TESTBED / "image"
BUILD_SECONDS = 600


def folder_with(name: str, *others: str) -> Path:
    """The folder that holds this chart; skips, and says so, when there is none."""
    given = os.environ.get(VARIABLE)
    if not given:
        pytest.skip(f"NOT TESTED with chart {name}: {VARIABLE} names no folder with charts")
    missing = [wanted for wanted in (f"{name}-{version_of(name)}.tgz", *others) if not (Path(given) / wanted).is_file()]
    if missing:
        pytest.skip(f"NOT TESTED with chart {name}: {given} has no {', '.join(missing)}")
    return Path(given)


def version_of(name: str) -> str:
    """That of the chart, as install.sh expects it."""
    found = re.search(rf"^{name.upper()}_CHART=(\S+)$", (ROOT / "infra/versions.env").read_text(), re.M)
    assert found
    return found[1]


def built(name: str, *more: Path, folder: Path) -> str:
    """The image of tests/install/images/NAME, with further files beside its Dockerfile."""
    context = shutil.copytree(IMAGES / name, folder / name)
    for file in more:
        shutil.copy2(file, context)
    # Nodes keep what they have under a tag.
    tag = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(context).iterdir()))).hexdigest()[:12]
    command = [BUILD, context, f"train-func-test-{name}:{tag}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=True)
    return done.stdout.strip()


def installer_with(admin: Kubectl, charts: Path, folder: Path, **images: str) -> Installer:
    """install.sh from a copy whose versions.env names these images, as for a site whose nodes pull from elsewhere."""
    checkout, bundle = folder / "checkout", folder / "bundle"
    shutil.copytree(ROOT / "infra", checkout / "infra")
    shutil.copy2(ROOT / "install.sh", checkout)
    versions = checkout / "infra/versions.env"
    for name, image in images.items():
        versions.write_text(re.sub(rf"^{name}=.*$", f"{name}={image}", versions.read_text(), flags=re.M))
    bundle.mkdir()
    (bundle / "charts").symlink_to(charts)
    (bundle / "operator").symlink_to(training_operator.manifests().parents[1])
    return Installer(
        admin.kubeconfig,
        bundle,
        folder,
        os.environ["TRAIN_FUNC_IMAGE"],
        in_cluster_minio.image(),
        script=checkout / "install.sh",
        without=foreign_components(admin),
    )


def foreign_components(admin: Kubectl) -> tuple[str, ...]:
    """Components that are there already and not ours to install; skips when install.sh was here before."""
    if admin.run("get", "configmap", "train-func-install", "--namespace=kubeflow").returncode == 0:
        pytest.skip("NOT TESTED with charts: something is installed on this cluster already")
    there = admin.run("get", "crd", "pytorchjobs.kubeflow.org").returncode == 0
    return ("operator",) if there else ()
