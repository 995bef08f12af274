"""From a pod of the manifest to what its shim has to start: Kubernetes' order of things, substitutions applied."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_func.client import quantity
from train_func.client.expansion import expand
from train_func.client.twin import substitutes
from train_func.client.twin.folder import JobFolder
from train_func.client.twin.machine import Machine
from train_func.client.twin.record import PodRecord
from train_func.client.twin.shim import Launch
from train_func.client.twin.spec import Spec


class Node:
    """This machine, as the pods of one job see it."""

    def __init__(self, spec: Spec, folder: JobFolder, machine: Machine, environment: Mapping[str, str]) -> None:
        self.spec = spec
        self.folder = folder
        self.machine = machine
        self.environment = environment
        """Of the controller: what the image brings along, and the values of the Secrets."""
        self.services = substitutes.Services(spec)

    def launch(self, record: PodRecord) -> Launch:
        """What to start for a pod; raises CannotStart when something it needs is missing."""
        container, pod = self.spec.container, self.folder.pod(record)
        pod.mkdir(parents=True, exist_ok=True)
        link = self.folder.link(record)
        if not link.is_symlink():
            link.symlink_to(pod)
        mounts = self._mounts(record)
        environment = self._environment(record, mounts)
        command = [expand(substitutes.rewrite(word, mounts), environment) for word in container["command"]]
        working = Path(substitutes.rewrite(container["workingDir"], mounts))
        working.mkdir(parents=True, exist_ok=True)
        memory = container["resources"]["limits"].get("memory")
        return Launch(
            argv=substitutes.interpreter(command),
            environment=environment,
            folder=str(working),
            log=str(self.folder.pod_log(record)),
            termination=str(mounts[container["terminationMessagePath"]]),
            memory_limit=None if memory is None else quantity.whole(memory),
            grace=float(self.spec.pod["terminationGracePeriodSeconds"]),
        )

    def _mounts(self, record: PodRecord) -> dict[str, Path]:
        pod = self.folder.link(record)
        volumes = {volume["name"]: volume for volume in self.spec.pod["volumes"]}
        mounts = {self.spec.container["terminationMessagePath"]: pod / "termination"}
        for mount in self.spec.container["volumeMounts"]:
            path = mount["mountPath"]
            mounts[path] = substitutes.volume_folder(
                volumes[mount["name"]], path, pod=pod, config_maps=self.folder.config_maps, cache=self.folder.cache
            )
        return mounts

    def _environment(self, record: PodRecord, mounts: Mapping[str, Path]) -> dict[str, str]:
        """The image's variables, the manifest's in their order, the operator's, the machine's."""
        declared = self.spec.container["env"]
        secrets = {entry["name"] for entry in declared if "secretKeyRef" in entry.get("valueFrom", {})}
        brought = {name: value for name, value in self.environment.items() if name not in secrets}
        environment = {**brought, "HOSTNAME": record.name}
        added = self.spec.operator_environment()
        for entry in [*declared, *({"name": name, "value": value} for name, value in added.items())]:
            value = self._value(entry, record, environment, mounts)
            if value is not None:
                environment[entry["name"]] = value
        environment["HF_HOME"] = self.environment["HF_HOME"]
        environment["CUDA_VISIBLE_DEVICES"] = substitutes.devices(record.worker, self.spec.container, self.machine)
        environment["TRAIN_FUNC_JOB"] = self.spec.name
        environment["TRAIN_FUNC_HOME"] = str(self.folder.home)
        return environment

    def _value(
        self, entry: Mapping[str, Any], record: PodRecord, known: Mapping[str, str], mounts: Mapping[str, Path]
    ) -> str | None:
        source = entry.get("valueFrom", {})
        if "secretKeyRef" in source:
            return substitutes.secret(entry["name"], source["secretKeyRef"], self.environment)
        if "fieldRef" in source:
            return substitutes.field(source["fieldRef"]["fieldPath"], self.spec, record)
        if "resourceFieldRef" in source:
            return substitutes.resource(source["resourceFieldRef"]["resource"], self.spec.container, self.machine)
        # Only what the manifest itself says is rewritten, never what a variable in it stands for.
        return expand(self.services.local(substitutes.rewrite(entry["value"], mounts)), known)
