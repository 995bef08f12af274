"""What a Hub does when the real client pushes to it: repositories are made, files are taken, a commit is made of them.

The requests are those of huggingface_hub over HTTP: create, preupload, the LFS batch with its uploads, and the commit.
"""

import base64
import hashlib
import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace

import yaml

from tests.tiny_hub import Answer, Repository, Request, as_json, refusal

LARGE = (".safetensors",)  # endings of files that go to the large file storage
ATTRIBUTES = {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}


@dataclass
class Pushes:
    """Takes what the ``owners`` of tokens push to ``repositories``."""

    repositories: MutableMapping[str, Repository]
    owners: dict[str, str]
    """Name of the account by token."""
    stored: dict[str, bytes] = field(default_factory=dict)
    """Large files, by SHA-256."""
    asked: list[str] = field(default_factory=list)

    def __call__(self, request: Request) -> Answer | None:
        self.asked.append(f"{request.method} {request.path}")
        match request.method, request.path.strip("/").split("/"):
            case "PUT", ["lfs", sha256]:
                return self._store(sha256, request.body)
            case "POST", ["api", "validate-yaml"]:
                return validated(json.loads(request.body)["content"])
            case "POST", ["api", "repos", "create"]:
                return self._created(request, json.loads(request.body))
            case "POST", ["api", "models", owner, name, "preupload", _]:
                return self._allowed(request, owner) or self._modes(f"models/{owner}/{name}", json.loads(request.body))
            case "POST", [owner, name, "info", "lfs", "objects", "batch"]:
                return self._allowed(request, owner) or self._batch(request.hub, json.loads(request.body))
            case "POST", ["api", "models", owner, name, "commit", _]:
                return self._allowed(request, owner) or self._committed(request, f"models/{owner}/{name}")
        return None

    def _allowed(self, request: Request, owner: str) -> Answer | None:
        if request.token not in self.owners:
            return Answer(401, b"{}")
        return None if self.owners[request.token] == owner else Answer(403, b"{}")

    def _created(self, request: Request, asked: dict) -> Answer:
        owner = asked["organization"] or self.owners.get(request.token, "")
        if refused := self._allowed(request, owner):
            return refused
        name = f"{owner}/{asked['name']}"
        status = 409 if f"models/{name}" in self.repositories else 200
        if status == 200:
            is_private = asked.get("visibility") == "private"
            self.repositories[f"models/{name}"] = Repository(ATTRIBUTES, private=is_private)
        return replace(as_json({"url": f"{request.hub}/{name}"}), status=status)

    def _modes(self, name: str, asked: dict) -> Answer:
        there = self.repositories[name].files

        def told(path: str) -> dict:
            mode = "lfs" if path.endswith(LARGE) else "regular"
            oid = oid_of(there[path], mode) if path in there else None
            return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid}

        return as_json({"files": [told(file["path"]) for file in asked["files"]]})

    def _batch(self, hub: str, asked: dict) -> Answer:
        def told(file: dict) -> dict:
            upload = {"upload": {"href": f"{hub}/lfs/{file['oid']}"}}
            return {**file, **({} if file["oid"] in self.stored else {"actions": upload})}

        return as_json({"transfer": "basic", "objects": [told(file) for file in asked["objects"]]})

    def _store(self, sha256: str, data: bytes) -> Answer:
        if hashlib.sha256(data).hexdigest() != sha256:
            return Answer(400, b"{}")
        self.stored[sha256] = data
        return Answer(200)

    def _committed(self, request: Request, name: str) -> Answer:
        before, told = self.repositories[name], [json.loads(line) for line in request.body.splitlines()]
        files, parent = dict(before.files), None
        for line in told:
            match line["key"], line["value"]:
                case "header", value:
                    parent = value.get("parentCommit")
                case "file", value:
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile", value:
                    files[value["path"]] = self.stored[value["oid"]]
                case "deletedFile", value:
                    del files[value["path"]]
        if parent not in (None, before.commit):
            return refusal(412, "")
        after = replace(before, files=files, earlier=(before, *before.earlier))
        self.repositories[name] = after
        at = f"{request.hub}/{name.removeprefix('models/')}/commit/{after.commit}"
        return as_json({"commitUrl": at, "commitOid": after.commit, "pullRequestUrl": None})


def oid_of(data: bytes, mode: str) -> str:
    """As the Hub tells it: of a large file its SHA-256, of any other that of git."""
    return (
        hashlib.sha256(data).hexdigest() if mode == "lfs" else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    )


def validated(card: str) -> Answer:
    """Whether the front matter of a card is what the Hub takes."""
    parts = card.split("---\n", 2)
    try:
        found = yaml.safe_load(parts[1]) if card.startswith("---\n") and len(parts) == 3 else {}
    except yaml.YAMLError:
        found = None
    faults = ["the front matter is no YAML mapping"] if not isinstance(found, dict) else []
    faults += [
        f"{name} has to be a list" for name in ("tags", "datasets") if not isinstance((found or {}).get(name, []), list)
    ]
    errors = [{"message": fault} for fault in faults]
    return replace(as_json({"errors": errors, "warnings": []}), status=400 if errors else 200)
