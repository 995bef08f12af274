"""Keeps in memory what the API has of one kind: listed once, then told of every change.

A dropped connection goes on where it was; where the server no longer knows that version, everything is
listed anew.
"""

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from train_func.client.cluster import faults
from train_func.client.cluster.access import Access, Json, Stream
from train_func.client.cluster.timings import Waits

LIST_SECONDS = 10.0
REFUSED = (401, 403, 404)
GONE = 410
_BOOKMARK = b'"type":"BOOKMARK"'

T = TypeVar("T")


@dataclass(frozen=True)
class Watched(Generic[T]):
    """What is watched, and what is kept of each object."""

    resource: str
    path: str
    query: tuple[tuple[str, str], ...]
    concerns: bytes
    """In the JSON of every object that matters; the others are not even parsed."""
    read: Callable[[Json], T | None]
    """None: it does not matter."""


class Informer(threading.Thread, Generic[T]):
    """One list and one watch after the other, in a thread of its own, until it is stopped or refused."""

    def __init__(
        self,
        access: Access,
        watched: Watched[T],
        changed: Callable[[], None],
        before: "Informer[T] | None" = None,
    ) -> None:
        """``before``: one that has ended, of the same; what it had seen is kept."""
        super().__init__(name=f"watch {watched.resource}", daemon=True)
        self._access = access
        self.watched = watched
        self._changed = changed
        self._version = ""
        self._stream: Stream | None = None
        self._stopped = threading.Event()
        self.waits = Waits(self._stopped)
        self._pause = access.timings.watch_pause
        self._since: float | None = None  # when that began that nothing is heard
        self.items: dict[str, T] = before.items if before else {}
        """By uid, in the order in which they were first seen; replaced, never changed."""
        self.gone: dict[str, T] = before.gone if before else {}
        """Those that were there before, as they were last."""
        self.synced = False
        """Whether everything is known; stays so while the server is away."""
        self.error: BaseException | None = None
        """Why nothing is heard at the moment."""
        self.failure: BaseException | None = None
        """Why it has given up."""

    def stop(self) -> None:
        """Ends the watch and the thread."""
        self._stopped.set()
        if stream := self._stream:
            stream.close()

    def run(self) -> None:
        self.waits.count()
        while not self._stopped.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
            except Exception as error:
                self.error = error
                self._since = self._since or time.monotonic()
                if not faults.known(error):
                    self._give_up(error)
                    raise
                if faults.status_of(error) in REFUSED and not self.synced:
                    self._give_up(error)
                    return
                # What may be listed and not watched is listed now and then; but a server that has just started refuses
                # for a moment what it allows later.
                if faults.status_of(error) == GONE or (faults.status_of(error) in REFUSED and self.outage):
                    self._version = ""
            self._stopped.wait(self._pause * random.SystemRandom().uniform(0.8, 1.2))
            self._pause = min(2 * self._pause, self._access.timings.longest_watch_pause)

    @property
    def outage(self) -> BaseException | None:
        """Why nothing has been heard for a while, or will be ever."""
        lasting = self._since is not None and time.monotonic() - self._since >= self._access.timings.outage
        return self.failure or (self.error if lasting else None)

    def _give_up(self, error: BaseException) -> None:
        self.failure, self.synced = error, False
        self._changed()

    def _list(self) -> None:
        listing = self._access.get(self.watched.path, seconds=LIST_SECONDS, **dict(self.watched.query))
        read = {item["metadata"]["uid"]: self.watched.read(item) for item in listing["items"]}
        found = {uid: value for uid, value in read.items() if value is not None}
        missed = {uid: value for uid, value in self.items.items() if uid not in found}
        kept = {uid: found[uid] for uid in self.items if uid in found}
        self.gone, self.items = {**self.gone, **missed}, {**kept, **found}
        self._version = listing["metadata"]["resourceVersion"]
        self.synced = True
        self._changed()

    def _watch(self) -> None:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(self._access.timings.watch),
        }
        silence = self._access.timings.silence  # bookmarks come every minute
        stream = Stream(self._access, self.watched.path, [*self.watched.query, *query.items()], silence=silence)
        self._stream = stream
        self.error = self._since = None
        if self._stopped.is_set():
            stream.close()
        opened = time.monotonic()
        try:
            self._read(stream)
        finally:
            if time.monotonic() - opened > self._access.timings.outage:  # what ends it now is something new
                self._pause = self._access.timings.watch_pause

    def _read(self, stream: Stream) -> None:
        for line in stream.lines():
            if self.watched.concerns in line or _BOOKMARK in line[:64] or b'"ERROR"' in line[:64]:
                self._take(json.loads(line))
            self._pause = self._access.timings.watch_pause

    def _take(self, news: Json) -> None:
        kind, item = news["type"], news["object"]
        if kind == "ERROR":
            raise _refused(item)
        self._version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK" or (value := self.watched.read(item)) is None:
            return
        uid = item["metadata"]["uid"]
        if kind == "DELETED":
            self.gone = {**self.gone, uid: value}
            self.items = {other: kept for other, kept in self.items.items() if other != uid}
        elif self.items.get(uid) == value:
            return
        else:
            self.items = {**self.items, uid: value}
        self._changed()


def _refused(status: Json) -> Exception:
    from kubernetes.client import ApiException

    refused: Exception = ApiException(status=status.get("code"), reason=status.get("reason"))
    refused.__dict__["body"] = json.dumps(status)
    return refused
