"""A node that does not answer is named with its workers and its remedy, and the job is waited for."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import Clock, RecordedJob, a_record
from train_func.client.diagnose import JobMonitor
from train_func.client.kinds.pytorchjob import PYTORCHJOB

BEGIN = datetime(2026, 11, 21, 14, 42, 18, tzinfo=UTC)  # of the recorded job


def at(seconds):
    return (BEGIN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Job(RecordedJob):
    """Two workers on the node ``gone``, as the API has them; a test deletes and marks them."""

    def __init__(self):
        super().__init__("succeeded")
        self.recorded["job"]["status"]["conditions"] = []
        self.recorded["events"] = []
        self.recorded["pods"] = [self._pod(number) for number in (0, 1)]

    def _pod(self, number):
        metadata = {
            "name": f"job-a-worker-{number}",
            "namespace": "lab",
            "uid": f"uid-{number}",
            "labels": {"training.kubeflow.org/replica-index": str(number)},
        }
        running = {"name": "pytorch", "state": {"running": {"startedAt": at(2)}}}
        conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "PodScheduled")]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": [running]}
        return {"metadata": metadata, "spec": {"nodeName": "gone"}, "status": status}

    def delete(self, *numbers, at_second, grace=30):
        for number in numbers:
            times = {"deletionTimestamp": at(at_second + grace), "deletionGracePeriodSeconds": grace}
            self.recorded["pods"][number]["metadata"] |= times

    def unheard(self, *numbers, reason=""):
        """``reason``: as a kubelet gives one; the controller that misses the kubelet gives none."""
        for number in numbers:
            ready = self.recorded["pods"][number]["status"]["conditions"][0]
            ready |= {"status": "False"} | ({"reason": reason} if reason else {})


class Watch:
    """A monitor whose client's clock differs from the cluster's by ``skew`` seconds."""

    def __init__(self, job, *, second=0.0, skew=0.0):
        self.clock = Clock()
        self.second = second
        self.monitor = JobMonitor(a_record(2), job, self.clock, lambda: BEGIN + timedelta(seconds=self.second + skew))

    def until(self, second):
        """What is told up to that second, with the second."""
        told = []
        while self.second < second:
            told += [(self.second, diagnosis) for diagnosis in self.monitor.look()]
            self.second += 1
            self.clock.seconds += 1
        return told


@pytest.mark.parametrize("skew", [0, 3600, -3600])
def test_a_pod_that_stays_after_its_grace_period_is_told_once_within_a_minute_with_node_and_remedy(skew):
    job = Job()
    watch = Watch(job, skew=skew)
    assert watch.until(5) == []
    job.delete(1, at_second=5)
    ((when, told),) = watch.until(600)
    assert (30 < when - 5 <= 60, told.cause) == (True, "cluster")
    assert unnamed(told.message, "worker 1", "gone", "job-a-worker-1", "14:42:53") == []
    taint = "kubectl taint nodes gone node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    force = "kubectl -n lab delete pod job-a-worker-1 --grace-period=0 --force"
    assert unnamed(told.remedy, taint, force, "administrator", "may delete pods") == []


def test_the_grace_period_of_the_pod_is_waited_for():
    job = Job()
    watch = Watch(job)
    watch.until(5)
    job.delete(1, at_second=5, grace=300)
    assert watch.until(305) == []
    assert len(watch.until(360)) == 1


def test_a_pod_that_was_deleted_long_before_is_told_soon():
    job = Job()
    job.delete(0, at_second=5, grace=300)
    ((when, _),) = Watch(job, second=3600).until(3660)
    assert when - 3600 <= 30


def test_the_job_is_waited_for_and_a_wait_that_ends_tells_why_until_the_pod_has_gone():
    job = Job()
    watch = Watch(job)
    job.delete(1, at_second=0)
    ((_, told),) = watch.until(100)
    assert (watch.monitor.failure(), watch.monitor.current) == (None, [told])
    del job.recorded["pods"][1]
    assert (watch.until(120), watch.monitor.current) == ([], [])


def test_several_workers_of_one_node_are_told_together():
    job = Job()
    watch = Watch(job)
    job.delete(0, 1, at_second=0)
    ((_, told),) = watch.until(100)
    assert unnamed(told, "workers 0, 1", "delete pod job-a-worker-0 job-a-worker-1") == []


def test_a_pod_that_ends_in_time_or_was_on_no_node_is_no_matter_of_a_node():
    job = Job()
    ended, waiting = job.recorded["pods"]
    end = {"exitCode": 143, "reason": "Error", "startedAt": at(2), "finishedAt": at(8)}
    ended["status"]["containerStatuses"][0]["state"] = {"terminated": end}  # a finalizer keeps the object
    waiting["spec"] = {}
    job.delete(0, 1, at_second=0)
    assert Watch(job).until(200) == []


def test_a_node_that_the_cluster_misses_is_told_before_its_pods_are_deleted():
    job = Job()
    watch = Watch(job)
    watch.until(5)
    job.unheard(1)
    ((when, told),) = watch.until(40)
    assert (when, told.cause, watch.monitor.failure()) == (5, "cluster", None)
    assert unnamed(told, "worker 1", "gone", "job-a-worker-1", "out-of-service", "--force") == []
    job.delete(1, at_second=40)
    ((_, kept),) = watch.until(200)
    assert unnamed(kept.message, "worker 1", "14:43:28") == []


def test_a_worker_that_its_own_node_calls_unready_is_on_a_node_that_answers():
    job = Job()
    job.unheard(0, 1, reason="ContainersNotReady")
    assert Watch(job).until(100) == []


def test_the_end_of_the_grace_period_is_read_from_what_the_api_says_of_a_pod():
    job = Job()
    job.delete(0, at_second=10, grace=15)
    deleted, other = (PYTORCHJOB.pod(pod) for pod in job.recorded["pods"])
    assert (deleted.node, deleted.namespace) == ("gone", "lab")
    assert (deleted.deletion.due, deleted.deletion.grace_seconds) == (BEGIN + timedelta(seconds=25), 15)
    assert other.deletion is None
