"""A very small Hub on this machine: serves repositories to the real client libraries, and refuses as the Hub does."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from tests.api_servers import running


@dataclass(frozen=True)
class Repository:
    """Files of the newest commit of a repository; ``gated`` ones hand out their listing but no file."""

    files: Mapping[str, bytes]
    gated: bool = False
    earlier: "tuple[Repository, ...]" = ()
    """Commits that its branch was at before."""
    private: bool = False

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def at(self, revision: str) -> "Repository | None":
        """What a branch or a commit holds."""
        return next((one for one in (self, *self.earlier) if revision in ("main", one.commit)), None)

    def entry(self, name: str) -> dict[str, object]:
        data = self.files[name]
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


@dataclass(frozen=True)
class Answer:
    status: int
    data: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def refusal(status: int, code: str) -> Answer:
    return Answer(status, b"{}", {"X-Error-Code": code})


@dataclass(frozen=True)
class Request:
    """What a client has sent; ``hub`` is the address it was sent to."""

    hub: str
    method: str
    path: str
    token: str
    body: bytes


@contextmanager
def tiny_hub(
    repositories: Mapping[str, Repository], writes: Callable[[Request], Answer | None] = lambda request: None
) -> Iterator[str]:
    """The address of a Hub with ``repositories`` under names such as "datasets/owner/name" and "models/owner/name".

    ``writes`` answers requests first, those that it has an answer for.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            chunked = self.headers.get("Transfer-Encoding") == "chunked"
            body = b"".join(self.chunks()) if chunked else self.rfile.read(int(self.headers["Content-Length"] or 0))
            token, path = (self.headers["Authorization"] or "").removeprefix("Bearer "), urlsplit(self.path).path
            request = Request(f"http://{self.headers['Host']}", self.command, unquote(path), token, body)
            found = writes(request) or reply(repositories, request.path, body)
            self.send_response(found.status)
            for name, value in {"Content-Length": str(len(found.data)), **found.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(found.data)

        def chunks(self) -> Iterator[bytes]:
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

        do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nothing is said."""

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def reply(repositories: Mapping[str, Repository], path: str, body: bytes) -> Answer:
    """What the Hub says to a request."""
    parts = path.strip("/").split("/")
    is_api = parts[0] == "api"
    parts = parts[1:] if is_api else parts
    kind, parts = (parts[0], parts[1:]) if parts[0] in ("models", "datasets") else ("models", parts)
    repository = repositories.get("/".join([kind, *parts[:2]]))
    if repository is None:
        return refusal(404 if is_api else 401, "RepoNotFound")
    action, revision, *rest = [*parts[2:], *("revision", "main")[max(0, len(parts) - 2) :]]
    name = "/".join(rest)
    repository = repository.at(revision)
    if repository is None:
        return refusal(404, "RevisionNotFound")
    if repository.gated and (not is_api or action == "auth-check"):
        return refusal(403, "GatedRepo")
    if is_api:
        return as_json(listing(repository, "/".join(parts[:2]), action, name, body))
    if name not in repository.files:
        return Answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repository.commit})
    etag = hashlib.sha1(repository.files[name]).hexdigest()
    return Answer(200, repository.files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": repository.commit})


def listing(repository: Repository, repo_id: str, action: str, folder: str, body: bytes) -> object:
    if action == "tree":
        return [repository.entry(name) for name in repository.files if name.startswith(folder)]
    if action == "paths-info":
        wanted = json.loads(body)["paths"]
        return [repository.entry(name) for name in repository.files if name in wanted]
    siblings = [{"rfilename": name, "size": len(data)} for name, data in repository.files.items()]
    gated = "manual" if repository.gated else False
    return {
        "id": repo_id,
        "sha": repository.commit,
        "siblings": siblings,
        "private": repository.private,
        "gated": gated,
    }


def as_json(value: object) -> Answer:
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})
