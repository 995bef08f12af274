"""JupyterHub, installed with the chart that TRAIN_FUNC_TEST_CHARTS holds, used with a real browser, and gone again."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import accounts
from tests.cluster.kubectl import Kubectl, until
from tests.install import browser, charts, hub
from tests.install.browser import Browser
from tests.install.installer import NAMESPACES, Installer
from tests.install.objects import everything
from tests.install.reach import listening, reached, skip_unless_enforced
from tests.install.store import key_of

HERE = f"--namespace={hub.NAMESPACE}"
RELEASE = "--selector=owner=helm,name=my-jupyter"
USER = "alice"


def objects(admin: Kubectl) -> dict[str, str]:
    """What an installation could change: its namespaces, and what is in none. Others may be at work elsewhere."""
    places = ("/", *(f"{name}/" for name in NAMESPACES))
    moving = ("PersistentVolume ", "Namespace ")
    found = everything(admin).items()
    return {
        what: version for what, version in found if what.split()[1].startswith(places) and not what.startswith(moving)
    }


@pytest.fixture(scope="module")
def before(admin: Kubectl) -> dict[str, str]:
    """What was there before the installation."""
    charts.folder_with("jupyterhub")
    return objects(admin)


@pytest.fixture(scope="module")
def installed(admin: Kubectl, before: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installer]:
    """The store, the namespace of jobs and JupyterHub are there."""
    folder = tmp_path_factory.mktemp("jupyterhub")
    images = {}
    if charts.BUILD.exists():
        images["JUPYTERHUB_HUB_IMAGE"] = charts.built("hub", folder=folder)
        images["JUPYTERHUB_PROXY_IMAGE"] = charts.built("proxy", folder=folder)
    found = charts.installer_with(admin, charts.folder_with("jupyterhub"), folder, **images)
    found.must("install")
    yield found
    found("uninstall", "--purge")
    for name in NAMESPACES:
        if not any(f" {name}/" in what for what in before):
            admin("delete", "namespace", name, "--ignore-not-found", "--timeout=120s", seconds=130)


@pytest.fixture(scope="module")
def url(installed: Installer, admin: Kubectl) -> Iterator[str]:
    with hub.forwarded(admin) as found:
        yield found


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of the browser are kept."""
    return tmp_path_factory.mktemp("shots")


@pytest.fixture
def window(shots: Path) -> Iterator[Browser]:
    """A browser without a session; skips, and says so, where there is none."""
    try:
        with browser.opened(shots) as found:
            yield found
    except browser.NoBrowser as none:
        pytest.skip(f"NOT TESTED in a browser: {none}")


def test_a_notebook_reaches_the_api_server_the_store_and_the_hub_by_name_and_no_other_pod(installed, admin):
    skip_unless_enforced(admin)
    labels = {"app": "jupyterhub", "release": "my-jupyter", "component": "singleuser-server"}
    labels |= {"hub.jupyter.org/network-access-hub": "true"}  # as the spawner marks its pods
    wanted = {"kubernetes.default.svc:443", "myminio.kubeflow:9000", "hub:8081"}
    node = admin("get", "nodes", "--output=jsonpath={.items[0].status.addresses[0].address}")
    with accounts.namespace_of_its_own(admin) as name, listening(admin, name) as other:
        assert other in reached(admin, name, other)
        assert reached(admin, hub.NAMESPACE, *wanted, other, f"{node}:10250", labels=labels) == wanted


def test_a_release_of_another_owner_is_refused_before_anything_is_changed(installed, admin):
    newest = admin("get", "secrets", HERE, RELEASE, "--output=name").split()[-1]
    admin("label", newest, HERE, "made-by-")
    try:
        done = installed("install")
        assert done.returncode == 3
        assert f"release {hub.NAMESPACE}/my-jupyter is there, not made by install.sh" in done.stdout
        assert f"or uninstall it: helm uninstall my-jupyter -n {hub.NAMESPACE}" in done.stdout
    finally:
        admin("label", newest, HERE, "made-by=train-func-install")


@pytest.mark.parametrize(("user", "whose"), [("alice", "admin"), ("admin", "user"), ("No name!", "user")])
def test_no_user_logs_in_with_the_wrong_name_or_password(url, admin, window, user, whose):
    hub.log_in(window, url, user, hub.password(admin, whose))
    window.wait_for(".login_error")
    assert hub.LOGIN_PAGE in window.address


def test_one_changed_word_trains_on_the_cluster(url, admin, window):
    hub.log_in(window, url, USER, hub.password(admin, "user"))
    hub.start_server(window, url)
    hub.open_notebook(window, url, USER)
    for name, old, new in [("where", "Local", "Cluster"), ("samples", "0", "60"), ("epochs", "4", "1")]:
        hub.change_word(window, name, old, new)
    ran = hub.run_all(window, USER)
    window.shot("trained")
    assert "the model, verified: /home/train-func/" in hub.printed(ran), hub.printed(ran)
    assert "model.safetensors" in hub.printed(ran)


def test_a_notebook_reads_no_secret_and_starts_nothing(installed, admin):
    pod = f"jupyter-{USER}"
    assert admin("get", "pod", pod, HERE, "--output=jsonpath={.spec.serviceAccountName}") == "notebook"
    one = f"--as=system:serviceaccount:{hub.NAMESPACE}:notebook"
    for namespace in NAMESPACES:
        for what in (("create", "pods"), ("create", "pods/exec"), ("get", "secrets"), ("create", "rolebindings")):
            assert admin.run("auth", "can-i", *what, f"--namespace={namespace}", one).stdout.strip() == "no"


def test_the_hub_reads_no_secret_and_makes_no_pod_where_store_operator_and_jobs_are(installed, admin):
    hub.has_rights_in_its_namespace_alone(admin, [name for name in NAMESPACES if name != hub.NAMESPACE])


def test_the_namespace_of_the_hub_holds_nothing_of_the_others_but_the_key_of_jobs(installed, admin):
    assert key_of(admin, hub.NAMESPACE, "myminio-jobs") == key_of(admin, "train-func", "myminio")
    assert key_of(admin, hub.NAMESPACE, "myminio-jobs") != key_of(admin, "kubeflow", "myminio")
    secrets = admin("get", "secrets", HERE, "--field-selector=type=Opaque", "--output=name").split()
    assert set(secrets) == {"secret/hub", "secret/my-jupyter-login", "secret/myminio-jobs"}
    pods = admin("get", "pods", HERE, "--output=jsonpath={.items[*].metadata.labels.app}").split()
    assert set(pods) == {"jupyterhub"}


def test_a_server_that_starts_again_finds_what_was_changed(url, admin, window):
    hub.log_in(window, url, USER, hub.password(admin, "user"))
    hub.stop_server(window, url, USER)
    hub.start_server(window, url)
    hub.open_notebook(window, url, USER)
    assert 'where = "Cluster"' in hub.cells(window, USER)[0]["source"]


def test_the_admin_sees_who_is_there_and_opens_no_server(url, admin, window):
    hub.log_in(window, url, "admin", hub.password(admin, "admin"))
    window.open(f"{url}/hub/home")
    found = json.loads(window.fetch("/hub/api/users")[1])
    assert USER in [user["name"] for user in found]
    assert not [scope for scope in json.loads(window.fetch("/hub/api/user")[1])["scopes"] if "admin:" in scope]
    window.open(f"{url}/user/{USER}/lab")
    window.wait_for("//h1[contains(., '403')]")


def test_a_notebook_reaches_the_api_server_the_store_and_dns_alone(installed, admin):
    shown = admin.json(
        "get", "endpointslices", "--namespace=default", "--selector=kubernetes.io/service-name=kubernetes"
    )
    api = [f"{address}/32" for each in shown["items"] for end in each["endpoints"] for address in end["addresses"]]
    policy = admin.json("get", "networkpolicy", "singleuser", HERE)["spec"]
    rules = [rule for rule in policy["egress"] if {port["port"] for port in rule.get("ports", [])} != {53}]
    blocks = [to["ipBlock"] for rule in rules for to in rule.get("to", []) if "ipBlock" in to]
    assert blocks == [{"cidr": address} for address in api]


def test_no_password_is_in_an_argument_a_release_or_what_was_said(installed, admin, url):
    installed.must("credentials")
    shown = json.dumps(admin.json("get", "configmaps,deployments,pods", HERE))
    for whose in ("user", "admin"):
        word = hub.password(admin, whose)
        assert len(word) >= 24
        assert word not in installed.said + installed.arguments + shown


def test_uninstalling_keeps_homes_and_installing_again_finds_them(installed, admin):
    claims = {"persistentvolumeclaim/hub-db-dir", f"persistentvolumeclaim/claim-{USER}"}
    assert f"kept in {hub.NAMESPACE}: " in installed.must("uninstall")
    assert claims <= set(admin("get", "pvc", HERE, "--output=name").split())
    assert not admin("get", "pods,deployments,services", HERE, "--selector=app=jupyterhub", "--output=name")
    installed.must("install")
    assert "nothing was changed" in installed.must("install")


def test_purging_leaves_the_cluster_as_it_was(installed, admin, before):
    installed.must("uninstall", "--purge")
    until(lambda: set(objects(admin)) == set(before), "everything is gone", 120)
