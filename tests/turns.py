"""Writers of a store whose calls are put into a drawn order, or one of whom stands still before a call."""

import contextlib
import random
import threading

from train_func.errors import StorageFailed
from train_func.storage import open_store


class Scheduled:
    """A store whose calls wait until it is their writer's turn."""

    def __init__(self, store, turns, writer):
        self._store, self._turns, self._writer, self.address = store, turns, writer, store.address

    def __getattr__(self, name):
        call = getattr(self._store, name)

        def waits(*args, **kwargs):
            with self._turns.turn(self._writer):
                return call(*args, **kwargs)

        return waits


class Turns:
    """Lets one writer make one call at a time; which one is drawn."""

    def __init__(self, seed, writers):
        self._draw, self._at_work, self._waiting = random.Random(seed), set(writers), set()
        self._changed, self._next = threading.Condition(), None

    @contextlib.contextmanager
    def turn(self, writer):
        with self._changed:
            self._waiting.add(writer)
            self._draw_next()
            self._changed.wait_for(lambda: self._next == writer)
        try:
            yield
        finally:
            with self._changed:
                self._waiting.discard(writer)
                self._next = None

    def leave(self, writer):
        with self._changed:
            self._at_work.discard(writer)
            self._draw_next()

    def _draw_next(self):
        if self._next is None and self._waiting == self._at_work and self._waiting:
            self._next = self._draw.choice(sorted(self._waiting))
            self._changed.notify_all()


def race(seed, store, acts):
    """What each act came to with the store, or why it failed, by its number; their calls in drawn order."""
    turns, ended = Turns(seed, acts), {}

    def write(number):
        try:
            ended[number] = acts[number](Scheduled(open_store(store.address), turns, number))
        except StorageFailed as failure:
            ended[number] = failure.reason
        finally:
            turns.leave(number)

    writers = [threading.Thread(target=write, args=(number,)) for number in acts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    return ended


def at_call(store, number, others):
    """The store; before its call of this number, from 0, ``others`` is called once."""
    return _StandsStill(store, number, others)


class _StandsStill:
    def __init__(self, store, number, others):
        self._store, self._left, self._others, self.address = store, number, others, store.address

    def __getattr__(self, name):
        call = getattr(self._store, name)

        def waits(*args, **kwargs):
            self._left -= 1
            if self._left == -1:
                self._others()
            return call(*args, **kwargs)

        return waits
