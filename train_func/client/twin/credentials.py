"""Values for the Secrets that a manifest refers to: from this process's environment, and from where the store looks."""

from collections.abc import Mapping
from typing import Any

from train_func.client.twin.spec import Spec
from train_func.storage import scheme_of


def found(manifest: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """What is there for the secretKeyRefs of the manifest, by variable; missing ones are left out."""
    declared = Spec.of(manifest).container.get("env", [])
    wanted = {entry["name"] for entry in declared if "secretKeyRef" in entry.get("valueFrom", {})}
    address = next((entry["value"] for entry in declared if entry["name"] == "TRAIN_FUNC_STORE"), None)
    of_store = scheme_of(address).secret_values(environment) if address else {}
    values = {**environment, **of_store}
    return {name: values[name] for name in wanted if name in values}
