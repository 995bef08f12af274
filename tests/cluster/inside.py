"""What a training function finds around itself in a worker's pod, told by the log of a real job."""

import json

from train_func import Cluster, Run, submit
from train_func.client.job import Job

MARK = "INSIDE "
LIMIT_SECONDS = 180.0


def look_around(parameters):
    import json
    import os
    import urllib.error
    import urllib.request
    from pathlib import Path

    def answer_of_the_api():
        import ssl

        host = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
        unverified = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(f"{host}/api/v1/secrets", timeout=10, context=unverified) as answer:
                return answer.status
        except urllib.error.HTTPError as refused:
            return refused.code

    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    mounts = {line.split()[1]: line.split()[3].split(",") for line in Path("/proc/mounts").read_text().splitlines()}
    found = {
        "process_1": Path("/proc/1/cmdline").read_text().rstrip("\0").split("\0"),
        "ids": [os.getuid(), os.getgid()],
        "capabilities": {name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")},
        "no_new_privileges": status["NoNewPrivs"].strip(),
        "seccomp": status["Seccomp"].strip(),
        "read_only_root": "ro" in mounts["/"],
        "tokens": [str(path) for path in Path("/var/run/secrets").rglob("*")],
        "answer_of_the_api": answer_of_the_api(),
    }
    print("INSIDE " + json.dumps(found), flush=True)


def finished_job() -> Job:
    """One of one worker whose function looked around."""
    job = submit(look_around, Run(), on=Cluster(cpu="250m", memory="2Gi"))
    assert job.wait(timeout=LIMIT_SECONDS) == "Succeeded", "\n".join(job.logs())
    return job


def told_by(job: Job) -> dict:
    """What the function printed."""
    line = next(line for line in job.logs() if MARK in line)
    return json.loads(line.partition(MARK)[2])
