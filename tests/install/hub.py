"""JupyterHub as one meets it: a login, a server of one's own, a notebook that is changed, run and read."""

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.kubectl import Kubectl, until
from tests.install.browser import Browser

NAMESPACE = "train-func-hub"
NOTEBOOK = "notebooks/01_finetune.ipynb"
SERVER_SECONDS = 400
RUN_SECONDS = 400
STOP_SECONDS = 120
LOGIN_PAGE = "/hub/login"
WAITING = "//div[contains(@class, 'jp-InputPrompt') and contains(., '*')]"


def has_rights_in_its_namespace_alone(admin: Kubectl, others: list[str]) -> None:
    """The account of the hub may read Secrets and make pods in its own namespace, and in ``others`` neither."""

    def may(namespace: str, *what: str) -> str:
        one = f"--as=system:serviceaccount:{NAMESPACE}:hub"
        return admin.run("auth", "can-i", *what, f"--namespace={namespace}", one).stdout.strip()

    assert may(NAMESPACE, "create", "pods") == may(NAMESPACE, "get", "secrets") == "yes"  # so the account is the hub's
    for namespace in others:
        for what in ("secret/myminio", "secret/myminio-jobs", "secrets"):
            assert may(namespace, "get", what) == "no", (namespace, what)
        for what in ("pods", "pods/exec", "pytorchjobs.kubeflow.org", "persistentvolumeclaims", "secrets"):
            assert may(namespace, "create", what) == "no", (namespace, what)


@contextmanager
def forwarded(admin: Kubectl) -> Iterator[str]:
    """Its address on this machine, the way that install.sh status tells."""
    command = [*Kubectl(admin.kubeconfig, NAMESPACE, limit=None).command, "port-forward", "svc/proxy-public", ":http"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:\d+", line)
        assert found, f"kubectl port-forward: {line}"
        yield f"http://{found[0]}"
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def password(admin: Kubectl, whose: str) -> str:
    """The users' or the admin's, as install.sh credentials tells how to read it."""
    template = f"--output=jsonpath={{.data.{whose}_password}}"
    return base64.b64decode(admin("get", "secret", "my-jupyter-login", f"--namespace={NAMESPACE}", template)).decode()


def log_in(browser: Browser, url: str, user: str, word: str) -> None:
    browser.open(url + LOGIN_PAGE)
    browser.type("#username_input", user)
    browser.type("#password_input", word)
    browser.click("#login_submit")


def start_server(browser: Browser, url: str) -> None:
    """The small one, until JupyterLab is there."""
    browser.open(f"{url}/hub/spawn")
    browser.wait_for("#kubespawner-profiles-list")
    browser.click("input[type=submit], button[type=submit]")
    browser.wait_for("#jp-main-dock-panel", SERVER_SECONDS)


def open_notebook(browser: Browser, url: str, user: str) -> None:
    browser.open(f"{url}/user/{user}/lab/tree/{NOTEBOOK}")
    browser.wait_for("//div[contains(@class, 'cm-line') and starts-with(., 'where = ')]")


def change_word(browser: Browser, name: str, old: str, new: str) -> None:
    """In the line that sets ``name``, as with a double click on the word."""
    line = f"//div[contains(@class, 'cm-line') and starts-with(., '{name} = ')]"
    browser.replace_word(f"{line}/span[contains(., '{old}')]", new)


def run_all(browser: Browser, user: str) -> list[dict[str, Any]]:
    """The code cells when all of them were run, or one of them failed."""
    browser.click("//li[.//div[text()='Run']]")
    browser.click("//li[@data-command='runmenu:run-all']")
    browser.wait_for(WAITING)
    until(lambda: not browser.has(WAITING), "no cell waits any more", RUN_SECONDS, lambda: str(browser.shot("running")))
    browser.press("s", control=True)
    browser.wait_for("//*[text()='Saving completed']")
    return cells(browser, user)


def cells(browser: Browser, user: str) -> list[dict[str, Any]]:
    """Code cells of the notebook as it was saved."""
    status, text = browser.fetch(f"/user/{user}/api/contents/{NOTEBOOK}?content=1")
    assert status == 200, text
    return [cell for cell in json.loads(text)["content"]["cells"] if cell["cell_type"] == "code"]


def stop_server(browser: Browser, url: str, user: str) -> None:
    """As its button does."""
    browser.open(f"{url}/hub/home")
    status, text = browser.fetch(f"/hub/api/users/{user}/server", "DELETE")
    assert status in (202, 204), text
    until(lambda: not json.loads(browser.fetch("/hub/api/user")[1])["server"], "the server has stopped", STOP_SECONDS)


def printed(code_cells: list[dict[str, Any]]) -> str:
    """Everything below the cells, tracebacks too."""
    outputs = [output for cell in code_cells for output in cell["outputs"]]
    return "\n".join("".join(output.get("text", "")) + "\n".join(output.get("traceback", [])) for output in outputs)
