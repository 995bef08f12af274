"""The store that install.sh made, as its keys open it."""

from typing import Any

from tests.cluster.kubectl import Kubectl

BUCKET = "kubeflow-examples"
SECRETS = [("kubeflow", "myminio"), ("kubeflow", "myminio-jobs"), ("train-func", "myminio")]


def key_of(admin: Kubectl, namespace: str, name: str) -> tuple[str, str]:
    template = "{{.data.rootUser | base64decode}} {{.data.rootPassword | base64decode}}"
    user, password = admin(
        "get", "secret", name, f"--namespace={namespace}", f"--output=go-template={template}"
    ).split()
    return user, password


def store_address(admin: Kubectl) -> str:
    """Where this machine reaches it: on the testbed Services have addresses that it can."""
    address = admin("get", "service", "myminio", "--namespace=kubeflow", "--output=jsonpath={.spec.clusterIP}")
    return f"http://{address}:9000"


def client(admin: Kubectl, key: tuple[str, str]) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=store_address(admin),
        region_name="us-east-1",
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
    )


def can_list(admin: Kubectl, key: tuple[str, str]) -> bool:
    """Whether this key opens the bucket of jobs."""
    from botocore.exceptions import ClientError

    try:
        client(admin, key).list_objects_v2(Bucket=BUCKET)
    except ClientError:
        return False
    return True
