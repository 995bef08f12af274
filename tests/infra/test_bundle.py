"""install.sh bundle: a real git repository, a real chart repository and a real registry end up whole in one folder.

What is published is small and made here; git, helm, skopeo and the registries are real.
"""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from tests.api_servers import running
from tests.infra.registries import digest_in, pushed, started
from tests.infra.test_install_render import published

ROOT = Path(__file__).parents[2]
PREREQUISITE = 3
IMAGE = "docker.io/me/train-func:1"


@pytest.fixture
def registries(tmp_path):
    """Starts registries: their addresses."""
    with ExitStack() as running:
        yield lambda name: running.enter_context(started(tmp_path, name))


@contextmanager
def served(folder):
    """A folder over HTTP: its address."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def ran(*command, code=0, **settings):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **settings)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def repository(folder):
    """A git repository with the operator's manifests: its address and commit."""
    shutil.copytree(published(), folder / "manifests")
    name = ["-c", "user.name=tester", "-c", "user.email=tester@example.org"]
    for words in (["init", "--quiet"], ["add", "."], [*name, "commit", "--quiet", "-m", "published"]):
        ran("git", *words, cwd=folder)
    return f"file://{folder}", ran("git", "rev-parse", "HEAD", cwd=folder).strip()


def charts(folder, versions):
    """A chart repository with two charts that bring nothing."""
    for name in ("openebs", "jupyterhub"):
        ran("helm", "create", folder / name)
        shutil.rmtree(folder / name / "templates")
        ran("helm", "package", folder / name, "--version", versions[f"{name.upper()}_CHART"], "--destination", folder)
    ran("helm", "repo", "index", folder)


class Site:
    """A checkout whose versions.env names what is published here, and an environment in which skopeo takes it."""

    def __init__(self, folder, registry):
        self.folder, self.registry = folder, registry
        self.bundle = folder / "bundle"
        self.digests = {}
        checkout = folder / "checkout"
        shutil.copytree(ROOT / "infra", checkout / "infra")
        self.script = shutil.copy2(ROOT / "install.sh", checkout)
        self.versions = checkout / "infra/versions.env"
        text = self.versions.read_text()
        for name, image in re.findall(r"^(\w+_IMAGE)=(\S+)$", text, re.M):
            text = text.replace(f"{name}={image}\n", f"{name}={self._publish(image)}\n")
        self.versions.write_text(text)
        self.image = self._publish(IMAGE)
        config = folder / ".config/containers/registries.conf"
        config.parent.mkdir(parents=True)
        config.write_text(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "KUBECONFIG": "/dev/null",
            "TRAIN_FUNC_IMAGE": self.image,
        }

    def _publish(self, image):
        """Here instead of where it really is; by digest where it was by digest."""
        name = re.split(r"[:@]", image.partition("/")[2])[0]
        digest = pushed(self.registry, name)
        self.digests[name] = digest
        return f"{self.registry}/{name}" + (f"@{digest}" if "@" in image else ":1")

    def set(self, **values):
        text = self.versions.read_text()
        for name, value in values.items():
            text = re.sub(rf"^{name}=.*$", f"{name}={value}", text, flags=re.M)
        self.versions.write_text(text)

    def collect(self, code=0, **environment):
        given = self.environment | environment
        return ran(self.script, "bundle", "--bundle", self.bundle, env=given, code=code)


@pytest.fixture
def site(tmp_path, registries):
    for tool in ("kubectl", "helm", "skopeo", "git"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not here: NOT TESTED what install.sh bundle collects")
    found = Site(tmp_path, registries("published"))
    (tmp_path / "operator").mkdir()
    (tmp_path / "charts").mkdir()
    address, commit = repository(tmp_path / "operator")
    versions = dict(re.findall(r"^(\w+)=(\S+)$", found.versions.read_text(), re.M))
    charts(tmp_path / "charts", versions)
    with served(tmp_path / "charts") as url:
        found.set(OPERATOR_REPOSITORY=address, OPERATOR_COMMIT=commit, OPENEBS_CHARTS=url, JUPYTERHUB_CHARTS=url)
        yield found


def test_a_bundle_is_all_that_a_site_without_the_internet_needs(site, registries):
    said = site.collect()
    assert "is complete" in said
    assert (site.bundle / "operator/overlays/standalone/kustomization.yaml").is_file()
    ran("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=site.bundle)
    images = (site.bundle / "images.txt").read_text().split()
    assert len(images) == len(set(images)) == 7  # volumes 2, store 1, operator 1, JupyterHub 2, ours

    inside = registries("inside")
    insecure = "--dest-tls-verify=false"
    shown = ran(site.bundle / "infra/push_images.sh", inside, insecure, env=site.environment)
    assert len([line for line in shown.split() if line.startswith(inside)]) == 7
    site.set(OPERATOR_REPOSITORY="/gone", OPENEBS_CHARTS="http://127.0.0.1:1", JUPYTERHUB_CHARTS="http://127.0.0.1:1")
    given = {"IMAGE_REGISTRY": inside, "TRAIN_FUNC_IMAGE": f"{inside}/{IMAGE.partition('/')[2]}"}
    for component in ("s3", "operator"):
        options = ("render", "--bundle", ".", "--only", component)
        text = ran("./install.sh", *options, cwd=site.bundle, env=site.environment | given)
        used = images_in(text)
        assert used
        for image in used:
            host, _, path = image.partition("/")
            assert host == inside
            assert digest_in(inside, path) == site.digests[re.split(r"[:@]", path)[0]]


def images_in(text):
    """Of all pods that were rendered."""
    found = [
        each["spec"]["template"]["spec"] for each in yaml.safe_load_all(text) if "template" in each.get("spec", {})
    ]
    return {container["image"] for pod in found for container in pod["containers"]}


def test_what_is_collected_already_is_kept(site):
    site.collect()
    before = {path: path.stat().st_mtime_ns for path in (site.bundle / "images").iterdir()}
    site.collect()
    assert {path: path.stat().st_mtime_ns for path in (site.bundle / "images").iterdir()} == before
    assert len(before) == 7


def test_an_image_that_cannot_be_had_ends_it_by_name_and_without_half_an_archive(site):
    site.set(OPERATOR_IMAGE=f"{site.registry}/missing/image:1")
    said = site.collect(code=4)
    assert f"{site.registry}/missing/image:1 cannot" in said
    assert not [path for path in (site.bundle / "images").iterdir() if "missing" in path.name]
    assert not (site.bundle / "SHA256SUMS").exists()


def test_all_that_it_lacks_is_said_before_anything_is_fetched(tmp_path):
    for tool in ("bash", "dirname", "sed", "date", "mktemp", "rm", "cp"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    environment = {"PATH": str(tmp_path), "HOME": "/nonexistent"}
    said = ran(ROOT / "install.sh", "bundle", "--bundle", tmp_path / "bundle", env=environment, code=PREREQUISITE)
    for word in ("git is not", "helm is not", "skopeo is not", "sha256sum is not", "TRAIN_FUNC_IMAGE is not set"):
        assert word in said
    assert not (tmp_path / "bundle").exists()


def test_a_bundle_that_was_damaged_on_its_way_is_named(site):
    site.collect()
    chart = next((site.bundle / "charts").glob("jupyterhub-*"))
    chart.write_bytes(chart.read_bytes()[:-1])
    config = {"clusters": [{"name": "away", "cluster": {"server": "http://127.0.0.1:1"}}], "users": []}
    config |= {"contexts": [{"name": "away", "context": {"cluster": "away", "user": ""}}]}
    kubeconfig = site.folder / "kubeconfig"
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
    given = site.environment | {"KUBECONFIG": str(kubeconfig)}
    said = ran(site.script, "doctor", "--bundle", site.bundle, env=given, code=PREREQUISITE)
    assert f"./charts/{chart.name}: FAILED" in said
