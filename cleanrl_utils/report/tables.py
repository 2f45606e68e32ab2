"""The tables of a report: the same for the page, Markdown and CSV."""

import csv
import io
import math
from typing import Any, NamedTuple

import numpy as np

from cleanrl_utils.atari_scores import human_normalized
from cleanrl_utils.report.compare import Comparison, OverGames, as_text, settings
from cleanrl_utils.statistics import Estimate

NOTHING = "–"


class Value(NamedTuple):
    """An entry: as people read it, as it is sorted, and what a CSV has of it."""

    text: str
    sort: float | str
    parts: dict[str, Any]  # by what is added to the column's name
    small: str = ""  # under it, on the page
    is_best: bool = False


class Table(NamedTuple):
    name: str  # of its files
    header: list[str]
    rows: list[list[Value]]


def words(text: Any) -> Value:
    shown = as_text(text)
    return Value(shown, shown.lower(), {"": shown})


def number(x: float, form: str = ",.0f") -> Value:
    """NaN: not known."""
    if math.isnan(x):
        return nothing()
    return Value(format(x, form), x, {"": x})


def nothing(small: str = "", **parts: Any) -> Value:
    return Value(NOTHING, -math.inf, parts, small)


def brief(x: float) -> str:
    """Four digits, or all of those before the point."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}"


def as_csv(table: Table) -> str:
    """A column for each part of its entries, or an empty one."""
    columns = [
        (index, part)
        for index in range(len(table.header))
        for part in dict.fromkeys(part for row in table.rows for part in row[index].parts) or [""]
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(f"{table.header[index]} {part}".strip() for index, part in columns)
    writer.writerows([row[index].parts.get(part, "") for index, part in columns] for row in table.rows)
    return out.getvalue()


def as_markdown(table: Table) -> str:
    def line(cells: list[str]) -> str:
        escaped = [cell.replace("|", r"\|") for cell in cells]
        return f"| {' | '.join(escaped)} |"

    alike = ["---", *["---:"] * (len(table.header) - 1)]
    rows = [[_in_markdown(value) for value in row] for row in table.rows]
    return "\n".join([line(table.header), f"|{'|'.join(alike)}|", *map(line, rows)]) + "\n"


def _in_markdown(value: Value) -> str:
    text = f"**{value.text}**" if value.is_best else value.text
    return f"{text} ({value.small})" if value.small else text


# ------------------------------------------------------------------------------------------------- the tables


def scores_table(comparison: Comparison) -> Table:
    """Of each game and group: the mean over its runs ± their standard deviation."""
    rows = []
    for game in comparison.games:
        scores = {group: comparison.cell(group, game).scores for group in comparison.groups}
        means = [x.mean() for x in scores.values() if len(x)]
        best = float(max(means)) if len(means) > 1 else None  # without a rival there is none
        row = [words(game)]
        for group in comparison.groups:
            row.append(_score(comparison, group, game, best))
        for has in comparison.published.values():
            row.append(_published_score(game, has[game]) if game in has else nothing())
        rows.append(row)
    return Table("scores", ["Game", *comparison.groups, *comparison.published], rows)


def _score(comparison: Comparison, group: str, game: str, best: float | None) -> Value:
    cell = comparison.cell(group, game)
    scores, total = cell.scores, len(cell.everyone)
    if not len(scores):
        unfinished = {"runs": 0, "runs that do not count": total}
        return nothing(f"0 of {total} runs complete" if total else "no run", **unfinished)
    mean, deviation = float(scores.mean()), float(scores.std(ddof=1)) if len(scores) > 1 else math.nan
    normalised = human_normalized(game, mean)
    speed = float(np.mean(speeds)) if (speeds := _speeds(cell.runs)) else math.nan
    of_runs = f"{len(scores)} of {total} runs" if total > len(scores) else f"{total} run{'s' * (total > 1)}"
    parts = {
        "mean": mean,
        "std": "" if math.isnan(deviation) else deviation,
        "runs": len(scores),
        "runs that do not count": total - len(scores),
        "human-normalised": "" if normalised is None else normalised,
        "steps/s": "" if math.isnan(speed) else speed,
    }
    text = brief(mean) if math.isnan(deviation) else f"{brief(mean)} ± {brief(deviation)}"
    small = of_runs if normalised is None else f"{normalised:.2f} × human · {of_runs}"
    return Value(text, mean, parts, small, is_best=mean == best)


def _speeds(runs: list[Any]) -> list[float]:
    return [run.speed for run in runs if not math.isnan(run.speed)]


def _published_score(game: str, score: float) -> Value:
    normalised = human_normalized(game, score)
    parts = {"score": score} | ({} if normalised is None else {"human-normalised": normalised})
    return Value(brief(score), score, parts, "" if normalised is None else f"{normalised:.2f} × human")


def groups_table(comparison: Comparison) -> Table:
    rows = []
    for group in comparison.groups:
        listed = [x for x in comparison.listed if x.group == group]
        counted = [x.run for x in listed if x.standing == "counts"]
        speeds = _speeds(counted)
        hours = sum(x.run.seconds for x in listed) / 3600
        rows.append(
            [
                words(group),
                number(len({x.game for x in listed})),
                Value(
                    f"{len(counted)} of {len(listed)}",
                    len(counted),
                    {"": len(counted), "in all": len(listed)},
                ),
                number(float(np.mean(speeds)) if speeds else math.nan),
                number(hours, ",.2f"),
            ]
        )
    return Table("groups", ["Group", "Games", "Runs that count", "Steps/s", "Hours"], rows)


def aggregates_table(over: OverGames, found: dict[str, dict[str, Estimate]]) -> Table:
    rows = [
        [
            words(who),
            number(len(over.all_scores[who])),
            words("published") if who in over.published else number(sum(map(len, over.scores[who]))),
            *(_estimate(estimate) for estimate in estimates.values()),
        ]
        for who, estimates in found.items()
    ]
    header = ["Group", "Games", "Runs", "Median", "IQM", "Mean", "Optimality gap"]
    return Table("aggregates", header, rows)


def _estimate(estimate: Estimate) -> Value:
    value, low, high = estimate
    interval = f"[{low:.2f}, {high:.2f}]" if high > low else ""
    return Value(
        f"{value:.2f} {interval}".strip(),
        value,
        {"": value, "low": low, "high": high} if interval else {"": value},
    )


def improvements_table(found: dict[tuple[str, str], tuple[Estimate, int]]) -> Table:
    rows = [[words(a), words(b), _estimate(e), number(games)] for (a, b), (e, games) in found.items()]
    return Table("improvement", ["Group", "Against", "Probability of improvement", "Games"], rows)


def settings_table(comparison: Comparison) -> Table:
    rows = [
        [words(name), *(words(" / ".join(by_group[group])) for group in comparison.groups)]
        for name, by_group in settings(comparison).items()
    ]
    return Table("settings", ["Setting", *comparison.groups], rows)


def runs_table(comparison: Comparison) -> Table:
    rows = [
        [
            words(x.game),
            words(x.group),
            words(x.run.seed),
            words(x.run.state),
            words(x.standing),
            Value(brief(x.run.score), x.run.score, {"": x.run.score})
            if len(x.run.curve.value)
            else nothing(),
            number(x.run.step),
            number(x.run.target) if x.run.target else nothing(),
            number(x.run.speed),
            number(x.run.seconds / 60, ",.1f"),
            words(x.run.path.name),
            words(x.run.damage),
        ]
        for x in comparison.listed
    ]
    header = "Game,Group,Seed,State,Standing,Score,Steps,Of,Steps/s,Minutes,Folder,Damage"
    return Table("runs", header.split(","), rows)


def problems_table(found: dict[str, list[str]]) -> Table:
    rows = [[words(kind), words(line)] for kind, lines in found.items() for line in lines]
    return Table("notes", ["What to know", "Where"], rows)
