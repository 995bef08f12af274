"""What install.sh gives to the charts of JupyterHub and OpenEBS, by profile: golden files, and what must hold in them.

The charts are not part of this repository, so a helm that only prints its values files stands in for them here; with
TRAIN_FUNC_TEST_CHARTS=DIR (see tests/install/charts.py) the real helm renders the real charts too.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.infra.install_sh import ROOT, install, needs_kubectl

GOLDEN = ROOT / "tests/golden/install"
VERSIONS = dict(re.findall(r"^([A-Z_]+)=(\S+)$", (ROOT / "infra/versions.env").read_text(), re.M))
IMAGE = "registry.example:5000/train-func:1"
PROFILES = ["generic", "kind", "aks", "hpk", "testbed"]
HELM = """#!/usr/bin/env bash
for argument; do
    case $argument in
        --values=*) printf -- '---\\n'; cat "${argument#--values=}" ;;
    esac
done
"""
SECRET = re.compile(r"(password|secretToken|cookieSecret|auth_token|keys)\"?: *[\"']?[A-Za-z0-9]{8,}")
given_charts = pytest.mark.skipif(
    not os.environ.get("TRAIN_FUNC_TEST_CHARTS") or not shutil.which("helm"),
    reason="NOT TESTED with the charts: TRAIN_FUNC_TEST_CHARTS names no folder with them, or helm is not here",
)


@pytest.fixture
def render(tmp_path):
    """Runs install.sh render for one component: its output."""
    needs_kubectl()

    def run(component, profile, *options, charts=None, code=0, helm=HELM, **environment):
        bundle = tmp_path / "bundle"
        bundle.mkdir(exist_ok=True)
        (bundle / "charts").unlink(missing_ok=True)
        (bundle / "charts").symlink_to(charts or stand_ins(tmp_path / "charts"))
        stands_in = {} if charts else {"folder": tmp_path, "programs": {"helm": helm}}
        given = {"HOME": "/home/me", "TRAIN_FUNC_IMAGE": IMAGE, "S3_IMAGE": "minio:1"}
        given |= {"AWS_ENDPOINT_URL_S3": "https://s3.example", **environment}
        options = ("--profile", profile, "--bundle", bundle, "--only", component, *options)
        done = install("render", *options, **stands_in, **given)
        assert done.returncode == code, done.stderr
        return done.stdout if not code else done.stderr

    return run


def stand_ins(folder):
    """Files where the charts would be."""
    folder.mkdir(exist_ok=True)
    for name in ("jupyterhub", "openebs"):
        (folder / f"{name}-{VERSIONS[f'{name.upper()}_CHART']}.tgz").touch()
    return folder


def merged(text):
    """As helm joins values files: later ones win, mappings are joined."""
    found: dict = {}
    for values in yaml.safe_load_all(text):
        if values and "apiVersion" not in values:
            found = joined(found, values)
    return found


def joined(first, second):
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second
    return first | {name: joined(first[name], value) if name in first else value for name, value in second.items()}


def generated(text):
    """What depends on profile and cluster: everything but the files of infra/, which stand there to be read."""
    plain = [yaml.safe_load(path.read_text()) for path in (ROOT / "infra").glob("*/*.yaml") if "values" in path.name]
    return [found for found in yaml.safe_load_all(text) if found and found not in plain]


@pytest.mark.parametrize("profile", PROFILES)
def test_what_depends_on_the_profile_is_that_of_the_golden_file(render, profile):
    text = render("jupyterhub", profile) + "---\n" + render("openebs", profile, "--storage", "openebs")
    shown = yaml.safe_dump_all(generated(text))
    path = GOLDEN / f"charts-{profile}.yaml"
    if os.environ.get("TRAIN_FUNC_REWRITE_GOLDEN"):
        path.write_text(shown)
    assert shown == path.read_text()


def test_the_login_is_never_open(render):
    hub = merged(render("jupyterhub", "generic"))["hub"]
    assert hub["config"]["JupyterHub"]["authenticator_class"] == "shared-password"
    assert "c.JupyterHub.authenticator_class = Login" in hub["extraConfig"]["login"]
    for key in ("user_password", "admin_password"):
        given = hub["extraEnv"][key.upper()]
        assert given == {"valueFrom": {"secretKeyRef": {"name": "my-jupyter-login", "key": key}}}


@pytest.mark.parametrize("profile", PROFILES)
def test_no_secret_is_in_the_values(render, profile):
    text = render("jupyterhub", profile) + render("openebs", profile, "--storage", "openebs")
    assert not SECRET.search(text)


def test_a_notebook_reaches_the_api_server_the_store_and_dns_alone(render):
    policy = merged(render("jupyterhub", "kind"))["singleuser"]["networkPolicy"]
    assert policy["enabled"]
    allowed = policy["egressAllowRules"]
    assert {name for name, given in allowed.items() if given} == {"dnsPortsKubeSystemNamespace", "dnsPortsPrivateIPs"}
    assert {"privateIPs", "nonPrivateIPs", "cloudMetadataServer", "dnsPortsCloudMetadataServer"} <= set(allowed)
    api, store, dns = policy["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert api == {"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": [{"port": 6443, "protocol": "TCP"}]}
    kubeflow = {"matchLabels": {"kubernetes.io/metadata.name": "kubeflow"}}
    assert store["to"] == [{"namespaceSelector": kubeflow, "podSelector": {"matchLabels": {"app": "myminio"}}}]
    assert store["ports"] == [{"port": 9000, "protocol": "TCP"}]


def test_a_notebook_reaches_the_internet_where_that_is_expected(render):
    found = merged(render("jupyterhub", "kind", NOTEBOOK_EGRESS="internet"))["singleuser"]["networkPolicy"]
    assert found["egressAllowRules"]["nonPrivateIPs"] is True
    assert found["egressAllowRules"]["privateIPs"] is False


ANYWHERE = [
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fd00:ec2::/32"]}},
]
OUTSIDE = {
    "http://10.1.2.3:9000": ([{"ipBlock": {"cidr": "10.1.2.3/32"}}], [{"port": 9000, "protocol": "TCP"}]),
    "https://10.1.2.4": ([{"ipBlock": {"cidr": "10.1.2.4/32"}}], [{"port": 443, "protocol": "TCP"}]),
    "https://s3.example": (ANYWHERE, [{"port": 443, "protocol": "TCP"}]),
    "http://minio.stores.svc.cluster.local:9000": (
        [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "stores"}}}],
        None,
    ),
}


@pytest.mark.parametrize("endpoint", OUTSIDE)
def test_a_store_outside_is_reached_by_its_address_its_namespace_or_by_name_anywhere(render, endpoint):
    given = {"AWS_ENDPOINT_URL_S3": endpoint, "AWS_REGION": "eu-west-3"}
    values = merged(render("jupyterhub", "generic", "--s3", "external", **given))["singleuser"]
    _, store, _ = values["networkPolicy"]["egress"]
    to, ports = OUTSIDE[endpoint]
    assert store["to"] == to
    assert store.get("ports") == ports
    assert values["extraEnv"]["AWS_ENDPOINT_URL_S3"] == endpoint
    assert values["extraEnv"]["AWS_REGION"] == "eu-west-3"


def test_one_changed_word_needs_no_argument_in_a_notebook(render):
    found = merged(render("jupyterhub", "generic"))["singleuser"]["extraEnv"]
    assert found["TRAIN_FUNC_IMAGE"] == IMAGE
    assert found["TRAIN_FUNC_NAMESPACE"] == "train-func"
    assert found["TRAIN_FUNC_STORE"] == "s3://kubeflow-examples"
    assert found["AWS_ENDPOINT_URL_S3"] == "http://myminio.kubeflow.svc.cluster.local:9000"
    assert found["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "myminio-jobs"


def test_without_volumes_nothing_asks_for_one(render):
    found = merged(render("jupyterhub", "generic", "--storage", "none"))
    assert found["singleuser"]["storage"]["type"] == "none"
    assert found["hub"]["db"]["type"] == "sqlite-memory"


def test_of_openebs_hostpath_alone_is_on(render):
    found = merged(render("openebs", "generic", "--storage", "openebs"))
    engines = found["engines"]
    on = [name for kind in engines.values() for name, given in kind.items() if given["enabled"]]
    assert on == ["hostpath"]
    assert not [name for name in ("loki", "alloy", "snapshotController") if found[name]["enabled"]]


def test_a_chart_that_brings_more_than_hostpath_is_refused(render):
    more = "#!/bin/sh\nprintf 'containers:\\n  - image: \"grafana/loki:3\"\\n'\n"
    said = render("openebs", "generic", "--storage", "openebs", helm=more, code=3)
    assert "(grafana/loki:3)" in said
    assert "infra/openebs/values.yaml" in said


@given_charts
@pytest.mark.parametrize("profile", PROFILES)
def test_the_chart_of_jupyterhub_takes_the_values_and_its_pods_pass_the_level_restricted(render, profile):
    text = render("jupyterhub", profile, charts=Path(os.environ["TRAIN_FUNC_TEST_CHARTS"]))
    found = [each for each in yaml.safe_load_all(text) if each]
    images = {VERSIONS["JUPYTERHUB_HUB_IMAGE"], VERSIONS["JUPYTERHUB_PROXY_IMAGE"]}
    pods = [each["spec"]["template"]["spec"] for each in found if each["kind"] == "Deployment"]
    assert {container["image"] for pod in pods for container in pod["containers"]} == images
    for pod in pods:
        for container in pod["containers"]:
            context = pod.get("securityContext", {}) | container["securityContext"]
            assert context["runAsNonRoot"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert container["resources"]["requests"]["memory"]
    assert "LoadBalancer" not in text
    assert "privileged: true" not in text


@given_charts
def test_the_chart_of_openebs_brings_one_provisioner_and_one_class(render):
    text = render("openebs", "generic", "--storage", "openebs", charts=Path(os.environ["TRAIN_FUNC_TEST_CHARTS"]))
    found = [each for each in yaml.safe_load_all(text) if each]
    kinds = sorted(each["kind"] for each in found)
    assert kinds == ["ClusterRole", "ClusterRoleBinding", "Deployment", "Namespace", "ServiceAccount", "StorageClass"]
    assert VERSIONS["OPENEBS_HELPER_IMAGE"] in text
