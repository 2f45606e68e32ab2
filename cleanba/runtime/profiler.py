"""A trace of a few updates, and how busy devices and cores are in it."""

import json
import time
from pathlib import Path
from typing import Any

import jax

from cleanba.runtime.files import atomic_write
from cleanba.runtime.machine import available_cores

SKIPPED = 3  # updates: compilation, and until actors and learner have settled
UPDATES = 2
PROFILE, SUMMARY = "profile", "summary.json"  # a folder in the run's, a file in it


class Profiler:
    """Traces whole updates; the learner's loop calls `before` and `after` each."""

    def __init__(self, folder: Path, first_update: int, updates: int):
        """`updates` is where the run ends: a short run is traced as far as it goes."""
        self._folder = folder
        self._first = min(first_update + SKIPPED, updates - 1)
        self._last = min(self._first + UPDATES, updates) - 1
        self._began = self._cpu = 0.0

    def before(self, update: int) -> None:
        if update == self._first:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # it would slow Python down, and the trace would show that
            jax.profiler.start_trace(str(self._folder), profiler_options=options)
            self._began, self._cpu = time.perf_counter(), time.process_time()

    def after(self, update: int) -> None:
        if update == self._last:
            seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
            jax.profiler.stop_trace()
            traces = sorted(self._folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
            busy = busy_seconds(traces[-1]) if traces else {}
            summary = {
                "updates": [self._first + 1, self._last + 1],
                "seconds": seconds,
                "cores": available_cores(),
                "cores_used": cpu / seconds,  # by Python, XLA and the environments
                "devices_busy": {name: time / seconds for name, time in busy.items()},
            }
            atomic_write(self._folder / SUMMARY, json.dumps(summary, indent=2).encode() + b"\n")


def busy_seconds(trace: Path) -> dict[str, float]:
    """How long each device had something to do. XLA does not trace CPUs."""
    busy = {}
    for plane in jax.profiler.ProfileData.from_file(str(trace)).planes:
        streams = [line for line in plane.lines if line.name.startswith("Stream")]
        if plane.name.startswith("/device:") and streams:
            events = [(event.start_ns, event.end_ns) for stream in streams for event in stream.events]
            busy[plane.name.removeprefix("/device:")] = covered(events) / 1e9
    return busy


def profile_summary(folder: Path) -> str:
    """The summary in a line; empty where there is none."""
    if not (folder / SUMMARY).is_file():
        return ""
    try:
        return _in_words(json.loads((folder / SUMMARY).read_text()), folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{folder / SUMMARY} is damaged"


def _in_words(summary: dict[str, Any], folder: Path) -> str:
    facts = [f"{name} busy {busy:.0%} of the time" for name, busy in summary["devices_busy"].items()]
    facts.append(f"{summary['cores_used']:.1f} of {summary['cores']} cores in use")
    first, last = summary["updates"]
    return f"profile of updates {first} to {last}: {', '.join(facts)}; the trace is in {folder}"


def covered(intervals: list[tuple[float, float]]) -> float:
    """The length of their union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
