"""Where the time of a thread goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timer:
    """Seconds per named activity: `with timer("inference"):`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """What was counted since the last take."""
        seconds, self._seconds = self._seconds, {}
        return seconds
