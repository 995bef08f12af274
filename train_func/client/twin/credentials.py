"""Values for the Secrets that a manifest refers to: this process's environment, and for S3 boto3's own search."""

from collections.abc import Mapping
from typing import Any

from train_func.client.twin.spec import Spec

ACCESS_KEY = "AWS_ACCESS_KEY_ID"


def found(manifest: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """What is there for the secretKeyRefs of the manifest, by variable; missing ones are left out."""
    declared = Spec.of(manifest).container.get("env", [])
    wanted = {entry["name"] for entry in declared if "secretKeyRef" in entry.get("valueFrom", {})}
    values = {name: environment[name] for name in wanted if name in environment}
    if ACCESS_KEY in wanted and ACCESS_KEY not in values:
        values |= {name: value for name, value in _searched_by_boto3().items() if name in wanted}
    return values


def _searched_by_boto3() -> dict[str, str]:
    """Keys from the files, profiles and services where boto3 looks; empty when it finds none."""
    import boto3  # slow to import, and seldom needed: the environment has the keys

    credentials = boto3.Session().get_credentials()
    if credentials is None:
        return {}
    keys = credentials.get_frozen_credentials()
    named = {ACCESS_KEY: keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key, "AWS_SESSION_TOKEN": keys.token}
    return {name: value for name, value in named.items() if value}
