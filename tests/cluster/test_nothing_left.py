"""Last of all: when every job of this session is deleted, nothing of ours is left."""

from collections.abc import Callable

from tests.cluster.kubectl import Kubectl
from train_func import Cluster


def test_deleting_every_job_leaves_nothing(notebook: Kubectl, left_behind: Callable[[], list[str]]) -> None:
    for job in notebook.json("get", "pytorchjobs")["items"]:
        Cluster().delete(job["metadata"]["name"])
    assert left_behind() == []
