"""The one place where threads wait for each other."""

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
        """Raise `ChannelClosed` if it is. Never waits: for loops that must notice the end early."""
        if self._closed:
            raise ChannelClosed

    def wait_closed(self, seconds: float) -> bool:
        """Whether it is closed within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, seconds)

    def __iter__(self) -> Iterator[T]:
        """Items until the channel is closed without an error."""
        while True:
            try:
                yield self.get()
            except ChannelClosed:
                return


class Precedence:
    """Some threads' work on a device goes before another thread's. A device takes programs in the order in
    which they come, so the other one gives way: it adds nothing to the queue while one of the first waits."""

    def __init__(self) -> None:
        self._waiting = 0
        self._changed = threading.Condition()

    @contextmanager
    def first(self) -> Iterator[None]:
        """The body hands work to the device, and waits for the result."""
        with self._changed:
            self._waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def give_way(self, seconds: float) -> None:
        """Until nobody waits, but not for longer than so many seconds: the others need this thread, too."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, seconds)
