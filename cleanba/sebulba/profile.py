"""A look inside: a trace of a few updates, and what it says about devices and cores."""

import json
import os
import time
from itertools import chain
from pathlib import Path

import jax

LEAVE_OUT = 3  # updates: compilation, and until actors and learner have found their pace
UPDATES = 2


class Profiler:
    """Traces whole updates of the learner's; whoever runs them calls `before` and `after` each."""

    def __init__(self, folder: Path, first_update: int, updates: int):
        """`updates` is where the run ends: a short one is traced as far as it goes."""
        self._folder = folder
        self._first = min(first_update + LEAVE_OUT, updates - 1)
        self._last = min(self._first + UPDATES, updates) - 1

    def before(self, update: int) -> None:
        if update == self._first:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # it slows Python down, which is then what the trace shows
            jax.profiler.start_trace(str(self._folder), profiler_options=options)
            self._began, self._cpu = time.perf_counter(), cpu_seconds()

    def after(self, update: int) -> None:
        if update == self._last:
            seconds, cpu = time.perf_counter() - self._began, cpu_seconds() - self._cpu
            jax.profiler.stop_trace()
            summary = {
                "updates": [self._first + 1, self._last + 1],
                "seconds": seconds,
                "cores_used": cpu / seconds,
                "cores": len(os.sched_getaffinity(0)),
                "devices_busy": devices_busy(self._folder, seconds),
            }
            (self._folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


def cpu_seconds() -> float:
    """Of all threads of this process, Python's, XLA's and the environments'."""
    return time.process_time()


def devices_busy(folder: Path, seconds: float) -> dict[str, float]:
    """Which part of the time each device had something to do. XLA traces no CPU devices."""
    trace = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    planes = jax.profiler.ProfileData.from_file(str(trace)).planes
    return {
        plane.name.removeprefix("/device:"): covered(
            [
                (event.start_ns, event.end_ns)
                for event in chain.from_iterable(line.events for line in plane.lines if "Stream" in line.name)
            ]
        )
        / (seconds * 1e9)
        for plane in planes
        if plane.name.startswith("/device:") and "CUSTOM" not in plane.name
    }


def covered(intervals: list[tuple[float, float]]) -> float:
    """The length of their union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
