"""Reads the log of one pod to its end, whatever happens to the connection: every line once.

Each line comes with the time at which the node wrote it down. After a drop the log is asked for again from shortly
before the last of them, and what was seen already is left out.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

from train_func.client.cluster import faults
from train_func.client.cluster.access import Access, Stream
from train_func.client.cluster.observer import Observer
from train_func.client.cluster.timings import Waits
from train_func.client.status import LogCut, LogLine, Pod

WINDOW = timedelta(seconds=2)  # before the last line; the times of two streams of a container are not in order
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
MOST_TRIES = 4  # at the log of a container that has ended: its node may be gone for good
NOT_STARTED, NO_CREDENTIALS, NOT_FOUND = 400, 401, 404
_STAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) (.*)", re.DOTALL)


def started(pod: Pod) -> bool:
    """Whether there is a log."""
    return pod.started is not None or pod.phase in ("Running", "Succeeded", "Failed")


def ended(pod: Pod) -> bool:
    """Whether nothing is written to its log any more."""
    return pod.ended is not None or pod.phase in ("Succeeded", "Failed")


class Resumed:
    """Tells lines that come again from new ones, by their times and how many there are of each."""

    def __init__(self) -> None:
        self._seconds: dict[str, Counter[str]] = {}  # of the last seconds in which lines were written
        self._again: Counter[str] = Counter()
        self._from = ""
        self._zone = "Z"

    @property
    def since(self) -> str | None:
        """From when on the log is to be asked for again; None: from its beginning."""
        return f"{self._from}{self._zone}" if self._from else None

    def begin(self) -> None:
        """The lines that follow begin again at ``since``."""
        self._from = ""
        if self._seconds:
            last = datetime.fromisoformat(max(self._seconds))
            self._from = (last - WINDOW).isoformat()
        self._again = sum(self._seconds.values(), Counter())

    def is_new(self, second: str, fraction: str, zone: str = "Z") -> bool:
        """Whether the line of that time has not come before."""
        self._zone = zone
        if second < self._from:
            return False
        moment = second + fraction
        if self._again[moment] > 0:
            self._again[moment] -= 1
            return False
        if second not in self._seconds:
            self._forget(second)
        self._seconds.setdefault(second, Counter())[moment] += 1
        return True

    def _forget(self, second: str) -> None:
        oldest = (datetime.fromisoformat(second) - WINDOW).isoformat()
        self._seconds = {kept: lines for kept, lines in self._seconds.items() if kept >= oldest}


class Tail(threading.Thread):
    """Follows the log of one incarnation; ends with the container, with a cut when the pod is gone or when stopped."""

    def __init__(
        self,
        access: Access,
        observe: Callable[[], Observer],
        pod: Pod,
        put: Callable[[LogLine | LogCut | Pod | Exception], None],
    ) -> None:
        """Begins with ``start``.

        Args:
            access: the cluster of the pod.
            observe: gives the observer of its job that runs.
            pod: whose log is read.
            put: takes the lines as they come, what ends the following, and at the end the pod.
        """
        super().__init__(name=f"log of {pod.name}", daemon=True)
        self._access = access
        self._observe = observe
        self.pod = pod
        self._put = put
        self._stopped = threading.Event()
        self._stream: Stream | None = None
        self._resumed = Resumed()
        self._tries = 0
        self._was_open = False

    def stop(self) -> None:
        """Reads no more."""
        self._stopped.set()
        if stream := self._stream:
            stream.close()

    def run(self) -> None:
        Waits(self._stopped).count()
        try:
            while not self._over():
                if self._stopped.is_set():
                    self._put(LogCut(self.pod.worker, self.pod.uid))
                    return
                pause = min(SHORTEST_PAUSE * 2**self._tries, LONGEST_PAUSE)
                self._stopped.wait(pause)
        except Exception as error:
            self._put(error)
        finally:
            self._put(self.pod)

    def _over(self) -> bool:
        """Reads as far as it goes now; whether that was the end."""
        observer = self._observe()
        pod = observer.pod(self.pod.uid)
        if pod is None or (self._tries > MOST_TRIES and ended(pod)):
            self._put(LogCut(self.pod.worker, self.pod.uid))
            return True
        try:
            whole = self._read(observer, follow=not ended(pod))
        except Exception as error:
            refused = faults.forbidden(error) or faults.status_of(error) == NO_CREDENTIALS
            if refused and not self._was_open:  # otherwise a right or a login may come back
                raise faults.failed(error, "get", "pods/log", self._access) from None
            if refused:
                observer.log_asked(error)
            if not faults.known(error):
                raise
            self._tries += faults.status_of(error) not in (NOT_STARTED, NOT_FOUND) or ended(pod)
            return False
        self._tries = 0
        return whole and ended(pod)

    def _read(self, observer: Observer, *, follow: bool) -> bool:
        """Whether the answer ended in good order, and held nothing but the container's lines."""
        self._resumed.begin()
        stream = self._stream = open_log(self._access, self.pod, follow=follow, since=self._resumed.since)
        if self._stopped.is_set() or not is_there(self._access, self.pod):
            stream.close()
            return False
        self._was_open = True
        observer.log_asked(None)
        whole = True
        for line in stream.lines():
            whole = self._take(line) and whole
        if stream.rest and not follow:
            whole = self._take(stream.rest) and whole
        return whole

    def _take(self, line: bytes) -> bool:
        found = _STAMPED.fullmatch(line)
        if found is None:  # the node's own words, such as that the container was not found
            return False
        second, fraction, zone, text = found[1].decode(), (found[2] or b"").decode(), found[3].decode(), found[4]
        if self._resumed.is_new(second, fraction, zone):
            self._tries = 0
            self._put(LogLine(self.pod.worker, self.pod.uid, readable(text)))
        return True


def open_log(access: Access, pod: Pod, *, follow: bool, since: str | None = None) -> Stream:
    """The log of the pod that has that name now, each line behind its time."""
    query = [("container", access.kind.container), ("timestamps", "true"), ("follow", "true" if follow else "false")]
    query += [("sinceTime", since)] if since else []
    # A silent worker is no fault, but a dead connection looks the same.
    silence = access.timings.silence if follow else access.timings.whole_log
    return Stream(access, access.core("pods", f"{pod.name}/log"), query, silence=silence)


def is_there(access: Access, pod: Pod) -> bool:
    """Whether the pod of that name is still this one: what was opened before is then its log, and no successor's."""
    found = access.find(access.core("pods", pod.name))
    return found is not None and found["metadata"]["uid"] == pod.uid


def readable(text: bytes) -> str:
    """The text of a line."""
    return text.decode(errors="replace").removesuffix("\r")
