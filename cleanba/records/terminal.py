"""Progress of a run: a live view on a terminal or in a notebook, one line per log interval elsewhere."""

import time
from collections.abc import Iterable

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cleanba.config.batch_plan import BatchPlan
from cleanba.records.notebook import NotebookView, in_notebook
from cleanba.records.row import RECENT_GAMES, Row, is_logged
from cleanba.runtime.messages import clock, show

ACTOR_ACTIVITIES = ("environment", "inference", "waiting")
LEARNER_ACTIVITIES = ("learning", "waiting")
RETURN, LENGTH, EPISODES = "charts/avg_episodic_return", "charts/avg_episodic_length", "stats/games"
OF_THE_RUN = ("update", "global_step", "seconds", RETURN, LENGTH, EPISODES)
QUIET_SECONDS = 30  # without a terminal, the longest time without a line, if an update is done by then
LINE_WIDTH = 24  # of the line of returns in a narrow terminal
WIDE, FACTS_WIDTH, CHART_HEIGHT = 120, 76, 8  # from WIDE columns on, a chart is beside the facts
BLOCKS = " ▁▂▃▄▅▆▇█"


class Terminal:
    """`progress` [actors] counts the steps that each actor has taken with its environments. A resumed run
    gives its rows so far."""

    def __init__(
        self,
        name: str,
        about: str,
        plan: BatchPlan,
        frequency: int,
        progress: np.ndarray,
        console: Console,
        before: Iterable[Row] = (),
    ):
        rows = list(before)
        self._name, self._about = name, about
        self._plan = plan
        self._frequency = frequency
        self._progress = progress
        self._console = console
        self._returns = [row[RETURN] for row in rows if RETURN in row]
        self._row: Row = {x: rows[-1][x] for x in OF_THE_RUN if x in rows[-1]} if rows else {}
        self._started = self._row_time = time.perf_counter()
        self._seconds_before = self._row.get("seconds", 0.0)
        self._first = True
        self._notebook = NotebookView(self._view) if in_notebook() and not console.quiet else None
        self._live = Live(get_renderable=self._view, console=console, refresh_per_second=4)
        if self._notebook:
            self._notebook.show()
        elif console.is_terminal and self._row.get("update", 0) < plan.updates:
            self._live.start()
        else:  # also if there is nothing left to train
            show(console, f"{name}  ·  {about}")
            if self._row.get("update", 0) < plan.updates:
                show(console, "compiling, and collecting the first batch: the first update takes longest")
        self._shown_time = self._started

    def write(self, row: Row) -> None:
        if "update" not in row:  # the evaluation after the training
            return
        self._row, self._row_time = row, time.perf_counter()
        shown = self._first or is_logged(row, self._frequency, self._plan.updates)
        shown |= self._row_time - self._shown_time >= QUIET_SECONDS
        self._first = False
        if RETURN in row:
            self._returns.append(row[RETURN])
        if self._notebook:
            self._notebook.update()
        elif shown and not self._console.is_terminal:
            self._shown_time = self._row_time
            show(self._console, line(row, self._plan))
        if row["update"] == self._plan.updates:
            self.close()  # the evaluation shows a status of its own

    def close(self) -> None:
        if self._notebook:
            self._notebook.show()
        elif self._console.is_terminal:
            self._live.stop()

    def _view(self) -> Group:
        row, plan, width = self._row, self._plan, self._console.width
        total = plan.updates * plan.batch_size
        done = min(total, round(self._progress.mean() * plan.num_envs))
        count = f"{done / total:6.1%}  {done:,} of {total:,} steps"
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=total, completed=done, width=max(10, width - len(count) - 2)), count)
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", min_width=9, no_wrap=True)
        for name, text in self._facts(row, wide=width >= WIDE):
            facts.add_row(name, text)
        body: Group | Table = facts
        if width >= WIDE:
            body = Table.grid(padding=(0, 2))
            body.add_column(width=FACTS_WIDTH)
            body.add_column()
            body.add_row(facts, self._chart(width - FACTS_WIDTH - 4))
        about = Text(self._about, style="dim", no_wrap=True, overflow="ellipsis")
        return Group(Text(self._name, style="bold", no_wrap=True, overflow="ellipsis"), about, bar, body)

    def _facts(self, row: Row, *, wide: bool) -> list[tuple[str, str]]:
        now = time.perf_counter()
        elapsed = self._seconds_before + now - self._started
        left = time_left(row, self._plan, now - self._row_time)
        actors = "actor" if self._plan.actors == 1 else "actors"
        facts = [
            ("return", returns(row).removeprefix("return ")),
            ("update", f"{row.get('update', 0):,} of {self._plan.updates:,}"),
            ("time", f"{clock(elapsed)} elapsed, {left or 'time left not known yet'}"),
            ("steps/s", _speeds(row)),
            ("losses", _losses(row)),
            (actors, shares(row, "actor", ACTOR_ACTIVITIES)),
            ("learner", shares(row, "learner", LEARNER_ACTIVITIES)),
        ]
        if not wide and len(self._returns) > 1:
            low, high = min(self._returns), max(self._returns)
            (curve,) = chart(self._returns, LINE_WIDTH, 1)
            facts.insert(1, ("", f"{low:.4g} {curve} {high:.4g}"))
        return facts

    def _chart(self, width: int) -> Group:
        """The return over the run so far, with its highest and lowest value."""
        if len(self._returns) < 2:
            return Group(Text("the return is drawn here once episodes finish", style="dim"))
        labels = [f"{max(self._returns):.4g}", f"{min(self._returns):.4g}"]
        margin = max(map(len, labels))
        lines = chart(self._returns, max(10, width - margin - 2), CHART_HEIGHT)
        lefts = [labels[0], *[""] * (CHART_HEIGHT - 2), labels[1]]
        body = "\n".join(f"{left:>{margin}} ▕{text}" for left, text in zip(lefts, lines, strict=True))
        return Group(Text("return over the run", style="dim"), Text(body, no_wrap=True, overflow="crop"))


def line(row: Row, plan: BatchPlan) -> str:
    """One line for one update."""
    total = plan.updates * plan.batch_size
    parts = [
        f"update {row['update']}/{plan.updates}",
        f"step {row['global_step']:,} ({row['global_step'] / total:.1%})",
        f"steps/s {_speeds(row)}",
        returns(row),
        _losses(row),
        time_left(row, plan),
    ]
    return " | ".join(filter(None, parts))


def time_left(row: Row, plan: BatchPlan, since: float = 0.0) -> str:
    """`since` the row, in seconds. Empty before the first update; that one includes compilation."""
    steps = plan.updates * plan.batch_size - row.get("global_step", 0)
    if "charts/SPS" in row:
        return f"{clock(max(0.0, steps / row['charts/SPS'] - since))} left"
    if "charts/SPS_update" in row:
        return f"under {clock(max(0.0, steps / row['charts/SPS_update'] - since))} left"
    return ""


def chart(values: list[float], width: int, height: int) -> list[str]:
    """Lines of blocks, the highest first. Each column is the mean of its share of the values."""
    cut = np.array_split(np.asarray(values, np.float64), min(width, len(values)))
    means = np.array([part.mean() for part in cut])
    span = (means.max() - means.min()) or 1.0
    eighths = 1 + np.round((means - means.min()) / span * (8 * height - 1)).astype(int)
    rows = [np.clip(eighths - 8 * row, 0, 8) for row in reversed(range(height))]
    return ["".join(BLOCKS[level] for level in row).ljust(width) for row in rows]


def returns(row: Row) -> str:
    if not row.keys() >= {RETURN, LENGTH, EPISODES}:
        return "no episode finished yet"
    return (
        f"return {row[RETURN]:.2f}, length {row[LENGTH]:.0f} "
        f"(last {min(row[EPISODES], RECENT_GAMES)} episodes)"
    )


def shares(row: Row, who: str, activities: tuple[str, ...]) -> str:
    """Of the time that these threads needed for the update. With policy lag actors are ahead of the learner:
    its time for the update is another."""
    total = row.get(f"stats/{who}_total_seconds")
    if not total:
        return "–"
    parts = {name: row.get(f"stats/{who}_{name}_seconds", 0.0) / total for name in activities}
    parts["other"] = 1 - sum(parts.values())
    return ", ".join(f"{name} {part:.0%}" for name, part in parts.items() if name != "other" or part > 0.005)


def _speeds(row: Row) -> str:
    if "charts/SPS_update" not in row:
        return "compiling, collecting the first batch"
    if "charts/SPS" not in row:
        return "measured from the second update on"
    return f"{row['charts/SPS_update']:,.0f} now, {row['charts/SPS']:,.0f} since the first update"


def _losses(row: Row) -> str:
    first = ("losses/policy_loss", "losses/value_loss", "losses/entropy")
    others = (name for name in row if name.startswith("losses/") and name not in (*first, "losses/loss"))
    names = [name for name in (*first, *others) if name in row]
    short = {name: name.removeprefix("losses/").removesuffix("_loss") for name in names}
    return ", ".join(f"{short[name]} {row[name]:.2g}" for name in names) or "–"
