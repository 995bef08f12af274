"""A pod that does not belong to a job, and knows where its workers meet, has no say in it."""

import json
import os

from tests.cluster import restricted_pod
from tests.cluster.kubectl import Kubectl
from tests.cluster.stepping import ONCE, training

MEETING_POINT = 23456
SAYS = """
import json, socket, sys, time
job, host, port = sys.argv[1:]
verdict = {"exit_code": 70, "cause": "code", "message": "the function has failed", "worker": 1, "root_cause": True,
           "follows": None, "hangs": None}
report = {"worker": 1, "pod": job + "-worker-1", "round": 1, "status": "failed", "verdict": verdict, "left": None,
          "went_on": False, "waits": False, "start": "", "address": "", "heard": 0.0}
said = json.dumps(report).encode()
crowd = [socket.create_connection((host, int(port)), timeout=10) for _ in range(100)]
for number, hello in enumerate((b"", bytes(64), job.encode(), b"x" * 1000)):
    try:
        crowd[number].sendall(hello + len(said).to_bytes(4, "big") + said)
    except OSError:
        pass
time.sleep(3)  # the workers look at each other once a second
print("reached")
"""


def test_a_stranger_that_reaches_the_meeting_point_ends_nothing(admin: Kubectl, namespace: str):
    with training(pause=1.0) as found:
        found.until_step(5)
        where = (found.name, found.pod(0), f"{MEETING_POINT}")
        stranger = restricted_pod.pod(os.environ["TRAIN_FUNC_IMAGE"], "stranger", "python", "-c", SAYS, *where)
        assert restricted_pod.said_by(Kubectl(admin.kubeconfig, namespace), stranger).split() == ["reached"]
        assert found.job.state == "Running"
        found.succeeds()
        assert found.numbers() == ONCE
        assert [end.exit_code for end in found.ends(1)] == [0, 0]


def test_what_lets_workers_know_one_another_stands_in_no_object_of_the_cluster(admin: Kubectl, namespace: str):
    key = os.environ["AWS_SECRET_ACCESS_KEY"]
    with training() as found:
        found.until_step(5)
        kinds = ("get", "pytorchjobs,pods,services", f"--namespace={namespace}", "--output=json")
        assert key not in json.dumps(found.job.manifest)
        assert key not in admin(*kinds)
        assert not [line for line in found.job.logs() if key in line]
