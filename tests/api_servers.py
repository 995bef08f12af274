"""A stand-in for an API server, over HTTP or TLS, that answers as a test says; and kubeconfigs that lead to it."""

import contextlib
import datetime
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME, ADDRESS = "api.example", "10.1.2.3"  # what the certificate is made out to, beside 127.0.0.1
Json = Mapping[str, Any]
Server = TypeVar("Server", bound=ThreadingHTTPServer)


@dataclass
class Asked:
    """A request, as the server saw it."""

    method: str
    path: str
    token: str
    client: str
    """Common name of the client's certificate."""
    body: bytes
    time: float


@dataclass
class Answer:
    """What the server says to it."""

    status: int = 200
    body: Json | bytes = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def busy(status: int = 429, **headers: str) -> Answer:
    """As an API server refuses what is too much for it."""
    told = {"kind": "Status", "status": "Failure", "message": "too many requests", "code": status}
    return Answer(status, told, {name.replace("_", "-"): value for name, value in headers.items()})


def unauthorized() -> Answer:
    """As an API server answers to a token that it does not know."""
    return Answer(401, {"kind": "Status", "status": "Failure", "message": "Unauthorized", "code": 401})


class ApiServer(ThreadingHTTPServer):
    """Notes every request and answers what ``answer`` returns."""

    daemon_threads = True

    def __init__(self, certificate: Path | None = None, ca: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Answer] = lambda asked: Answer()
        self.tls = certificate is not None
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            context.load_verify_locations(ca)
            context.verify_mode = ssl.CERT_OPTIONAL
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no matter."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        certificate = (self.connection.getpeercert() if self.server.tls else None) or {}
        names = {key: value for part in certificate.get("subject", ()) for key, value in part}
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        asked = Asked(self.command, self.path, token, names.get("commonName", ""), body, time.monotonic())
        self.server.asked.append(asked)
        answer = self.server.answer(asked)
        data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        self.do_GET()

    def do_PATCH(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def log_message(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Serves, and is gone afterwards."""
    with server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class Authority:
    """A certificate authority of a test's own; its certificates are good for an hour."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
        self.path = folder / "ca.pem"
        own = self._built(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.path.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def certificate(self, name: str) -> Path:
        """A file with a certificate made out to ``name`` and to this machine, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", ADDRESS)]
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name), *addresses])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._built(subject, key, alternatives)
        path = self._folder / f"{name}.pem"
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        path.write_bytes(made.public_bytes(pem) + private)
        return path

    def _built(self, subject: x509.Name, key: Any, extension: x509.ExtensionType) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(extension, critical=True)
        )
        return builder.sign(self._key, hashes.SHA256())


def write_kubeconfig(path: Path, cluster: Json, user: Json | None = None) -> Path:
    """A kubeconfig of one context."""
    config = {
        "clusters": [{"name": "there", "cluster": cluster}],
        "users": [{"name": "me", "user": user or {}}],
        "contexts": [{"name": "there", "context": {"cluster": "there", "user": "me", "namespace": "here"}}],
        "current-context": "there",
    }
    path.write_text(json.dumps(config))
    return path
