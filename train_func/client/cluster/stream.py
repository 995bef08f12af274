"""A long answer of the API, line by line."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from train_func.client.cluster.access import Access

CONNECT_SECONDS = 3.0


class Stream:
    """An answer that comes as long as something happens; it can be ended from another thread."""

    def __init__(self, access: Access, path: str, query: Sequence[tuple[str, str]], *, silence: float) -> None:
        """Sends the request; after ``silence`` seconds without a byte, reading raises an error that faults knows."""
        self._answer: Any = access.client.call_api(
            path,
            "GET",
            query_params=list(query),
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
            _request_timeout=(CONNECT_SECONDS, silence),
        )
        self.rest = b""
        """After the last line: what came without an end of line."""

    def lines(self) -> Iterator[bytes]:
        """Each line without its end; returns when the server has closed the answer in good order."""
        begun: list[bytes] = []
        try:
            for chunk in self._answer.stream(None, decode_content=False):
                first, *others = chunk.split(b"\n")
                begun.append(first)
                if others:
                    yield b"".join(begun)
                    yield from others[:-1]
                    begun = [others[-1]]
            self.rest = b"".join(begun)
        finally:
            self._answer.close()

    def close(self) -> None:
        """Whoever reads it sees its end at once."""
        with contextlib.suppress(Exception):  # it may have ended by itself this very moment
            self._answer.shutdown()
