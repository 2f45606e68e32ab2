"""The queues between threads, and the priority of actors on a device: the only code that blocks on a
thread."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ChannelClosed(Exception):
    """The other side is gone, and nothing is left to read."""


class Channel(Generic[T]):
    """A bounded first-in-first-out queue between threads that can be closed, with or without an error.

    Closing wakes everyone who waits. Items put before the close can still be read; then `get` raises the
    error, or `ChannelClosed` when there is none. `put` raises `ChannelClosed` at once.
    """

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"a channel needs room for at least one item, not {capacity}")
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()  # its lock can be taken twice by one thread

    def put(self, item: T) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._capacity)
            self.check_open()
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items)
            if not self._items:
                raise self._error or ChannelClosed
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def poll(self) -> T | None:
        """`get` if there is an item; never waits."""
        with self._changed:
            return self.get() if self._items else None

    def close(self, error: BaseException | None = None) -> None:
        """The first close counts: a later one does not replace its error."""
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
                self._changed.notify_all()

    def check_open(self) -> None:
        """Raise `ChannelClosed` if it is closed. Never waits: for loops that must notice the end early."""
        if self._closed:
            raise ChannelClosed

    @property
    def error(self) -> BaseException | None:
        """What it was closed with."""
        return self._error

    def wait_closed(self, seconds: float) -> bool:
        """Whether it is closed within this many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, seconds)

    def __iter__(self) -> Iterator[T]:
        """Items until the channel is closed without an error."""
        while True:
            try:
                yield self.get()
            except ChannelClosed:
                return


class DevicePriority:
    """Actors go before the learner on a device that both use. A device runs programs in the order in which
    they are queued, so the learner yields: it queues nothing while an actor waits for its result."""

    def __init__(self) -> None:
        self.waiting = 0  # actors that wait for a result
        self._changed = threading.Condition()

    @contextmanager
    def acquire(self) -> Iterator[None]:
        """The body queues work on the device and waits for the result."""
        with self._changed:
            self.waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self.waiting -= 1
                self._changed.notify_all()

    def yield_to(self, seconds: float) -> None:
        """Wait until no actor does, but at most this many seconds: actors need the learner, too."""
        with self._changed:
            self._changed.wait_for(lambda: not self.waiting, seconds)
