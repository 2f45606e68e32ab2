"""Where the time of a thread goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

TOTAL = "total"  # of all activities, and of what is none


class Timer:
    """Seconds per named activity: `with timer("inference"):`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """What was counted since the last take, and how long ago that is."""
        before, self._since = self._since, time.perf_counter()
        seconds, self._seconds = self._seconds, {}
        return seconds | {TOTAL: self._since - before}
