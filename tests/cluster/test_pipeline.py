"""The pipeline's train step on the operator, from a pod with account and variables of a step.

kfp's SubprocessRunner runs the step in that pod, where a server has a launcher: rights of the account, Secrets and
variables are held, and not how a server hands on artefacts and parameters.
"""

import json

import pytest

from tests.cluster.accounts import ACCOUNT
from tests.cluster.kubectl import Kubectl, until
from tests.cluster.restricted_pod import pod, said_by
from train_func import Cluster, Run, attach
from train_func.client.job_spec import SecretKey
from train_func.pipeline import arguments
from train_func.storage import open_store

SMALL = {"cpu": "500m", "memory": "2Gi"}
LIMIT_SECONDS = 400
pytestmark = pytest.mark.slow
STEP = """
import json, sys
from kfp import local
from train_func.pipeline import train

local.init(local.SubprocessRunner(use_venv=False), pipeline_root="/workspace/kfp")
done = train(**json.loads(sys.argv[1]))
print("ended " + json.dumps({name: value for name, value in done.outputs.items() if isinstance(value, str)}))
"""


def trains_for_a_while(parameters):
    import time

    time.sleep(parameters["seconds"])
    return {"loss": 0.25}


def pod_of_a_step(image: str, name: str, given: dict[str, str]) -> dict:
    """A pod of the step with what ``compile_pipeline`` gives it: variables, and keys by reference."""
    wanted = pod(image, name, "python", "-c", STEP, json.dumps(given))
    spec = wanted["spec"]
    spec |= {"serviceAccountName": ACCOUNT, "automountServiceAccountToken": True}
    variables = {**Cluster().client_environment(), "TMPDIR": "/workspace"}
    spec["containers"][0]["env"] += [_variable(name, value) for name, value in variables.items()]
    return wanted


def _variable(name: str, value: str | SecretKey) -> dict:
    if isinstance(value, str):
        return {"name": name, "value": value}
    reference = {"name": value.secret, "key": value.key, "optional": value.optional}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def test_a_step_whose_pod_is_deleted_in_mid_train_attaches_to_its_job_in_another_one(
    admin, namespace, image, notebook, jobs
):
    here = Kubectl(admin.kubeconfig, namespace)
    run = Run(workers=1, name="of-a-step", parameters={"seconds": 40})
    named = arguments(trains_for_a_while, run, on=Cluster(**SMALL))
    given = {name: named[name] for name in ("run", "source", "where", "options")}
    here.apply(pod_of_a_step(image, "step-1", given))

    def running() -> list[dict]:
        found = notebook.json("get", "pytorchjobs", "--selector=train-func/run")["items"]
        return [job for job in found if job["metadata"]["name"].startswith("of-a-step-")]

    (first,) = until(running, "the step submits its job", LIMIT_SECONDS, lambda: here("logs", "step-1"))
    here("delete", "pod", "step-1", "--grace-period=0", "--force")
    said = said_by(here, pod_of_a_step(image, "step-2", given))
    assert "; attached to it" in said
    ended = json.loads(said.partition("ended ")[2].splitlines()[0])
    job = attach(ended["name"], on=Cluster())
    jobs.append(job)
    assert job.result(LIMIT_SECONDS) == {"loss": 0.25}
    (only,) = running()
    assert only["metadata"]["uid"] == first["metadata"]["uid"]
    assert ended["address"] == f"{Cluster().store_address()}/{job.name}/model"
    assert len(open_store(Cluster().store_address()).names(job.record.keys.attempts)) == 1
