"""A real image registry on a free port, and small images in it, pushed as a client of its protocol would."""

import hashlib
import json
import os
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import contextmanager

from tests.s3_servers import needed

REGISTRY = """
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: %s}}
http: {addr: "%s"}
"""
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


@contextmanager
def started(folder, name):
    """One that keeps its images in the folder: its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = folder / f"{name}.yaml"
    config.write_text(REGISTRY % (folder / name, address))
    process = subprocess.Popen([needed("registry"), "serve", config], stderr=subprocess.DEVNULL)
    try:
        until_it_answers(f"http://{address}/v2/")
        yield address
    finally:
        process.kill()
        process.wait(30)


def until_it_answers(url):
    end = time.monotonic() + 30
    while True:
        try:
            return urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            assert time.monotonic() < end, url
            threading.Event().wait(0.1)


def pushed(registry, name, last=None):
    """A small image for two platforms under NAME:1, with this content of its last layer; its digest."""

    def blob(content):
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        asked = urllib.request.Request(f"http://{registry}/v2/{name}/blobs/uploads/", method="POST")
        with urllib.request.urlopen(asked, timeout=30) as answer:
            place = answer.headers["Location"]
        headers = {"Content-Type": "application/octet-stream"}
        put(f"{place}&digest={digest}", content, headers)
        return {"digest": digest, "size": len(content)}

    def manifest(reference, kind, content):
        put(f"http://{registry}/v2/{name}/manifests/{reference}", content, {"Content-Type": kind})

    found = []
    for machine in ("amd64", "arm64"):
        layers = [os.urandom(64), last or os.urandom(64)]  # nothing ever unpacks them
        config = {"architecture": machine, "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}, "config": {}}
        body = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **blob(json.dumps(config).encode())},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", **blob(layer)} for layer in layers],
        }
        content = json.dumps(body).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        manifest(digest, MANIFEST, content)
        platform = {"architecture": machine, "os": "linux"}
        found.append({"mediaType": MANIFEST, "digest": digest, "size": len(content), "platform": platform})
    content = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": found}).encode()
    manifest("1", INDEX, content)
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def put(url, content, headers):
    urllib.request.urlopen(urllib.request.Request(url, content, headers, method="PUT"), timeout=30).close()


def digest_in(registry, path):
    """Of what the registry has under a name with tag or digest."""
    name, _, reference = path.partition("@") if "@" in path else path.rpartition(":")
    asked = urllib.request.Request(f"http://{registry}/v2/{name}/manifests/{reference}", headers={"Accept": INDEX})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return f"sha256:{hashlib.sha256(answer.read()).hexdigest()}"
