"""A process that changes the status of every pod of a job every ten seconds: python changing_pods.py NAMESPACE JOB."""

import sys
import time

from kubernetes import client, config

EVERY_SECONDS = 10.0


def main(namespace: str, job: str) -> None:
    config.load_kube_config()
    core, number = client.CoreV1Api(), 0
    selector = f"training.kubeflow.org/job-name={job}"
    while True:
        end = time.monotonic() + EVERY_SECONDS
        number += 1
        for pod in core.list_namespaced_pod(namespace, label_selector=selector).items:
            condition = {"type": "tests/Round", "status": "True", "reason": f"Round{number}"}
            status = {"status": {"message": f"round {number}", "conditions": [condition]}}
            core.patch_namespaced_pod_status(pod.metadata.name, namespace, status)
        print(f"round {number}", flush=True)
        time.sleep(max(0.0, end - time.monotonic()))


main(*sys.argv[1:])
