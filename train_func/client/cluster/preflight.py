"""What a cluster would say to a job, asked before anything is created."""

from collections.abc import Mapping
from typing import Any

from train_func.client.cluster import faults
from train_func.client.cluster.access import Access
from train_func.client.cluster.objects import API
from train_func.errors import Cause

Finding = tuple[Cause, str]


def findings(access: Access, manifest: Mapping[str, Any]) -> list[Finding]:
    """Everything that would keep the job of ``manifest`` from running; empty when nothing is known."""
    try:
        access.custom.create_namespaced_custom_object(*API, access.namespace, "pytorchjobs", manifest, dry_run="All")
    except Exception as error:
        if not faults.known(error):
            raise
        fault = faults.failed(error, "create", "pytorchjobs", access)
        return [(fault.cause, str(fault))]
    return []
