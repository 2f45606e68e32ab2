"""Progress of a run: a live view on a terminal, one line per log interval elsewhere."""

import time

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cleanba.config.batch_plan import BatchPlan
from cleanba.records.row import RECENT_GAMES, Row, is_logged
from cleanba.runtime.messages import clock, show

ACTOR_ACTIVITIES = ("environment", "inference", "waiting")
LEARNER_ACTIVITIES = ("learning", "waiting")


class Terminal:
    """`progress` [actors] counts the steps that each actor has taken with its environments."""

    def __init__(self, title: str, plan: BatchPlan, frequency: int, progress: np.ndarray, console: Console):
        self._title = title
        self._plan = plan
        self._frequency = frequency
        self._progress = progress
        self._console = console
        self._start = time.perf_counter()
        self._row: Row = {}
        self._live = Live(get_renderable=self._view, console=console, refresh_per_second=4)
        if console.is_terminal:
            self._live.start()
        else:
            show(console, title)

    def write(self, row: Row) -> None:
        if "update" not in row:  # the evaluation after the training
            return
        shown = not self._row or is_logged(row, self._frequency, self._plan.updates)
        self._row = row
        if shown and not self._console.is_terminal:
            show(self._console, line(row, self._plan))
        if row["update"] == self._plan.updates:
            self.close()  # the evaluation shows a status of its own

    def close(self) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def _view(self) -> Group:
        row, plan = self._row, self._plan
        total = plan.updates * plan.batch_size
        done = round(total * self._progress.mean() / (plan.updates * plan.num_steps))
        elapsed = time.perf_counter() - self._start
        left = clock((total - row["global_step"]) / row["charts/SPS"]) if "charts/SPS" in row else "–"

        bar = Table.grid(padding=(0, 1))
        drawn = ProgressBar(total=total, completed=done, width=40)
        bar.add_row(drawn, f"{done / total:6.1%}", f"{done:,} of {total:,} steps")
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", min_width=9)
        facts.add_row("update", f"{row.get('update', 0):,} of {plan.updates:,}")
        facts.add_row("time", f"{clock(elapsed)} elapsed, {left} left")
        facts.add_row("steps/s", _speeds(row))
        facts.add_row("episodes", _episodes(row))
        facts.add_row("losses", _losses(row))
        facts.add_row("actors", _shares(row, "actor", ACTOR_ACTIVITIES))
        facts.add_row("learner", _shares(row, "learner", LEARNER_ACTIVITIES))
        return Group(Text(self._title, style="bold"), bar, facts)


def line(row: Row, plan: BatchPlan) -> str:
    """One line for one update."""
    total = plan.updates * plan.batch_size
    parts = [
        f"update {row['update']}/{plan.updates}",
        f"step {row['global_step']:,} ({row['global_step'] / total:.1%})",
        f"steps/s {_speeds(row)}",
        _episodes(row),
        _losses(row),
    ]
    if "charts/SPS" in row:
        parts.append(f"{clock((total - row['global_step']) / row['charts/SPS'])} left")
    return " | ".join(parts)


def _speeds(row: Row) -> str:
    if "charts/SPS" not in row:
        return "measured from the second update on" if row else "compiling, collecting the first batch"
    return f"{row['charts/SPS_update']:,.0f} now, {row['charts/SPS']:,.0f} since the first update"


def _episodes(row: Row) -> str:
    if "charts/avg_episodic_return" not in row:
        return "no episode finished yet"
    return (
        f"return {row['charts/avg_episodic_return']:.2f}, length {row['charts/avg_episodic_length']:.0f} "
        f"(last {min(row['stats/games'], RECENT_GAMES)} episodes)"
    )


def _losses(row: Row) -> str:
    first = ("losses/policy_loss", "losses/value_loss", "losses/entropy")
    others = (name for name in row if name.startswith("losses/") and name not in (*first, "losses/loss"))
    names = [name for name in (*first, *others) if name in row]
    short = {name: name.removeprefix("losses/").removesuffix("_loss") for name in names}
    return ", ".join(f"{short[name]} {row[name]:.2g}" for name in names)


def _shares(row: Row, who: str, activities: tuple[str, ...]) -> str:
    """Shares of the last update's time."""
    if "charts/SPS" not in row:  # before the first update or after it, which includes compilation
        return "–"
    seconds = row["stats/update_seconds"]
    return ", ".join(f"{a} {row[f'stats/{who}_{a}_seconds'] / seconds:.0%}" for a in activities)
