"""The lines of a run as a caller gets them: one after the other, and shown as they are where a notebook prints them."""

from collections.abc import Callable, Iterator

from train_func.text import shown


class LogText(Iterator[str]):
    """Iterated over, it gives every line once; its repr reads the log anew, and obeys nothing that a worker wrote."""

    def __init__(self, read: Callable[[], Iterator[str]], *, follow: bool) -> None:
        self._read = read
        self._lines: Iterator[str] | None = None
        self._follow = follow

    def __next__(self) -> str:
        self._lines = self._lines or self._read()
        return next(self._lines)

    def __repr__(self) -> str:
        return "the lines as they come: iterate over them" if self._follow else shown("\n".join(self._read()))
