"""Run folders for tests of analysis, and comparisons of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cleanba.analysis.report.aggregates import normalised_scores
from cleanba.analysis.report.compare import Comparison, compare
from cleanba.analysis.report.notes import Notes, notes
from cleanba.analysis.report.published import Published
from cleanba.analysis.report.runs import find_runs, read_run

BATCH = 100  # steps per update


def make_run(
    folder: Path,
    game: str,
    group: str = "ppo",
    seed: int = 1,
    returns: Sequence[float] = (1.0, 2.0, 3.0),
    *,
    updates: int | None = None,
    finished: bool = True,
    episodes: int = 500,
    name: str = "",
    **flags: Any,
) -> Path:
    """A run folder with a row for each of `returns`; the run was meant to make `updates`."""
    updates = updates or len(returns)
    path = folder / (name or f"{game}__{group}__{seed}__1700000000".replace("/", "-"))
    path.mkdir(parents=True)
    args = dict(exp_name=group, env_id=game, seed=seed, total_timesteps=updates * BATCH, runs_dir="runs")
    machine = dict(actor_devices="cpu", learner_devices="cpu", cpu="AMD EPYC", cores=2, jax="0.10")
    record = {
        "args": args | flags,
        "plan": {"batch_size": BATCH, "updates": updates},
        "env_options": {"frame_skip": 4},
        "layout": "a0-l0-d1",
        "code": {"commit": "0123456789abcdef", "changed": False},
        "machine": machine,
    }
    (path / "args.json").write_text(json.dumps(record))
    rows = [row(update, value, episodes) for update, value in enumerate(returns, 1)]
    (path / "metrics.jsonl").write_text("".join(rows))
    if finished:
        (path / "finished.json").write_text("{}")
    return path


def row(update: int, value: Any, episodes: int = 500) -> str:
    """A line of metrics.jsonl."""
    base = {"update": update, "global_step": update * BATCH, "seconds": 2.0 * update}
    metrics = {"charts/avg_episodic_return": value, "charts/SPS": 50.0, "stats/games": episodes}
    return json.dumps(base | metrics) + "\n"


def compare_runs(
    folder: Path,
    group_by: tuple[str, ...] = ("exp_name",),
    published: Published = Published({}),
    steps: int | None = None,
) -> Comparison:
    return compare([read_run(path, steps) for path in find_runs([folder])[0]], group_by, published, steps)


def notes_of(comparison: Comparison) -> Notes:
    return notes(comparison, normalised_scores(comparison))
