"""One pod of the image beside the jobs, as restricted as a worker's."""

from typing import Any

from tests.cluster.kubectl import Kubectl, until

WRITABLE = {"HOME": "/workspace", "HF_HOME": "/cache/hf"}
START_SECONDS = 400  # the first pod of a fresh cluster pulls 6 GB


def pod(image: str, name: str, *command: str) -> dict[str, Any]:
    """One pod of the image, as restricted as a worker's; its user is the image's own."""
    mounts = [{"name": "work", "mountPath": "/workspace"}, {"name": "cache", "mountPath": "/cache"}]
    container = {
        "name": "image",
        "image": image,
        "command": list(command),
        "workingDir": "/workspace",
        "env": [{"name": key, "value": value} for key, value in WRITABLE.items()],
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": mount["name"], "emptyDir": {}} for mount in mounts],
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def said_by(admin: Kubectl, wanted: dict[str, Any]) -> str:
    """What the pod printed, once it has ended well."""
    name = wanted["metadata"]["name"]
    admin.apply(wanted)

    def ended() -> str | None:
        phase = admin.json("get", "pod", name)["status"]["phase"]
        return phase if phase in ("Succeeded", "Failed") else None

    phase = until(ended, f"pod {name} ends", START_SECONDS, lambda: admin("describe", "pod", name))
    said = admin("logs", name)
    admin("delete", "pod", name)
    assert phase == "Succeeded", said
    return said
