"""Everything that a store and a namespace keep, to look in it for what must not be there."""

from tests.cluster.kubectl import Kubectl
from tests.s3_servers import S3Server


def everything_in(store: S3Server) -> dict[str, bytes]:
    """All objects of the bucket: models, checkpoints, logs, records, inputs."""
    client = store.client()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=store.bucket)
    keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
    return {key: client.get_object(Bucket=store.bucket, Key=key)["Body"].read() for key in keys}


def kinds(admin: Kubectl) -> list[str]:
    """Every kind of object that a namespace can hold, but Secrets."""
    found = admin("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    return [kind for kind in found if kind != "secrets"]


def of_kind(admin: Kubectl, namespace: str, kind: str, *, decoded: bool = False) -> bytes:
    """All objects of a kind as the API server has them; ``decoded``: the values of Secrets."""
    template = "{{range .items}}{{range .data}}{{. | base64decode}} {{end}}{{end}}"
    output = f"go-template={template}" if decoded else "json"
    return admin("get", kind, f"--namespace={namespace}", f"--output={output}", "--ignore-not-found").encode()
