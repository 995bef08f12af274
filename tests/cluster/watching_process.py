"""A process that watches a job for a while and then says what that cost.

python -m tests.cluster.watching_process NAME UNMEASURED MEASURED, the times in seconds.

Before anything is imported that could connect, every request to the API is counted where it is made.
"""

import contextlib
import io
import json
import os
import sys
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

import psutil

from train_func import Cluster, attach
from train_func.client.cluster.kubeconfig import connect

NUM_WATCHES, START_SECONDS = 3, 60.0  # of job, pods and events; a busy machine begins late


def main(name: str, unmeasured: float, measured: float) -> None:
    access, asked = connect(None, os.environ["TRAIN_FUNC_NAMESPACE"]), Counter()  # the one that Cluster() uses
    outage = access.client.call_api

    def counted(path, method, *arguments, **options):
        query = dict(options.get("query_params") or (arguments[1] if len(arguments) > 1 else None) or [])
        kind = "watch" if query.get("watch") == "true" else "log" if path.endswith("/log") else "other"
        asked[f"{kind} {path.split('/')[-1] if kind == 'watch' else ''}".strip()] += 1
        return outage(path, method, *arguments, **options)

    access.client.call_api = counted
    server = urlsplit(access.client.configuration.host)
    job = attach(name, on=Cluster())
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        threading.Thread(target=job.watch, daemon=True).start()
        end = time.monotonic() + START_SECONDS
        while sum(kind.startswith("watch ") for kind in asked) < NUM_WATCHES and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(unmeasured)
        begun, before = time.process_time(), Counter(asked)
        connections = []
        end = time.monotonic() + measured
        while time.monotonic() < end:
            time.sleep(1)
            mine = psutil.Process().net_connections("tcp")
            connections.append(sum(c.status == "ESTABLISHED" and c.raddr.port == server.port for c in mine))
        cpu = (time.process_time() - begun) / measured
    changes = len(Cluster().job(job.record.job_name).pods())
    found = {
        "cpu": cpu,
        "connections": max(connections),
        "asked_at_first": before,
        "asked_meanwhile": asked - before,
        "pods": changes,
        "state": job.state,
        "shown": shown.getvalue(),
    }
    print(json.dumps(found))


main(sys.argv[1], *map(float, sys.argv[2:]))
