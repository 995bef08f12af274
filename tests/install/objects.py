"""Everything that a cluster holds, to compare before and after."""

from tests.cluster.kubectl import Kubectl

# Made and changed by the cluster itself, at any moment.
MOVING = {
    "componentstatuses", "endpoints", "endpointslices", "events", "leases", "nodes", "pods", "csinodes", "ipaddresses",
    "controllerrevisions", "replicasets", "apiservices", "servicecidrs",
}  # fmt: skip
LINE = "{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.resourceVersion}{'\\n'}{end}"


def everything(admin: Kubectl) -> dict[str, str]:
    """The version of every object, by its kind and name."""
    listed = admin("api-resources", "--verbs=list", "--output=name").split()
    kinds = [kind for kind in listed if kind.split(".")[0] not in MOVING]
    shown = admin("get", ",".join(kinds), "--all-namespaces", "--ignore-not-found", f"--output=jsonpath={LINE}")
    found = (line.rsplit(" ", 1) for line in shown.splitlines() if line)
    return {what: version for what, version in found if not _of_the_cluster(what)}


def _of_the_cluster(what: str) -> bool:
    """What every namespace is given by itself."""
    kind, _, name = what.partition(" ")
    if kind == "ConfigMap":
        return name.startswith("kube-system/") or name.endswith("/kube-root-ca.crt")
    return kind == "ServiceAccount" and name.endswith("/default")
