"""Lines of the pods of a job as they come."""

import queue
import threading
from collections.abc import Iterator

from train_func.client.cluster import faults, objects
from train_func.client.cluster.access import Access
from train_func.client.observed import LogLine, Pod

LOOK_SECONDS = 1.0
SILENCE_SECONDS = 3600.0


def lines(access: Access, job_name: str, *, follow: bool) -> Iterator[LogLine]:
    """Every line of every pod there is; with ``follow`` until the job has ended and all was read."""
    come: queue.Queue[LogLine | Pod] = queue.Queue()
    read: set[str] = set()
    reading: set[str] = set()
    while True:
        over = not follow or (status := objects.status(access, job_name)) is None or status.finished
        for pod in objects.pods(access, job_name):
            if pod.uid not in read and pod.phase not in ("Pending", "Unknown"):
                read.add(pod.uid)
                reading.add(pod.uid)
                threading.Thread(target=_read, args=(access, pod, come, follow), daemon=True).start()
        if over and not reading:
            return
        try:
            come_one = come.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            continue
        while True:
            if isinstance(come_one, Pod):
                reading.discard(come_one.uid)
            else:
                yield come_one
            if come.empty():
                break
            come_one = come.get()


def _read(access: Access, pod: Pod, come: "queue.Queue[LogLine | Pod]", follow: bool) -> None:
    try:
        answer = access.core.read_namespaced_pod_log(
            pod.name,
            access.namespace,
            follow=follow,
            _preload_content=False,
            _request_timeout=(3.0, SILENCE_SECONDS),
        )
        for line in answer:
            come.put(LogLine(pod.worker, pod.uid, line.decode(errors="replace").rstrip("\n")))
    except Exception as error:
        if not faults.known(error):
            raise
    finally:
        come.put(pod)
