"""The tables of a report, for the page, Markdown and CSV."""

import csv
import io
import math
import re
from html import escape
from typing import Any, NamedTuple

import numpy as np

from cleanba.analysis.report.aggregates import Aggregates, Improvements, NormalisedScores
from cleanba.analysis.report.compare import Cell, Comparison, settings
from cleanba.analysis.report.notes import Notes
from cleanba.analysis.report.runs import Run, as_text
from cleanba.analysis.statistics import Estimate
from cleanba.evaluation.atari_scores import human_normalized


class Value(NamedTuple):
    """A table cell: what is displayed, the sort key, and its columns in a CSV."""

    text: str
    sort: float | str
    parts: dict[str, Any]  # CSV values, by suffix of the column's name; None is an empty one
    small: str = ""  # second line on the page
    is_best: bool = False


class Table(NamedTuple):
    name: str  # of its files
    header: list[str]
    rows: list[list[Value]]


def text_value(content: Any) -> Value:
    text = as_text(content)
    return Value(text, text.lower(), {"": text})


def number(x: float, form: str = ",.0f") -> Value:
    """NaN means unknown."""
    return empty() if math.isnan(x) else Value(format(x, form), x, {"": x})


def duration(seconds: float) -> Value:
    """In hours, minutes or seconds, as it suits; in a CSV in seconds."""
    unit, name = (3600, "h") if seconds >= 7200 else (60, "min") if seconds >= 120 else (1, "s")
    return Value(f"{seconds / unit:,.1f} {name}", seconds, {"seconds": round(seconds, 3)})


def empty(small: str = "", **parts: Any) -> Value:
    return Value("–", -math.inf, parts, small)


def brief(x: float) -> str:
    """Three or four digits, or all before the decimal point."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}"


def as_csv(table: Table) -> str:
    """A column for each part of a table's column, or an empty one."""
    columns = [
        (index, part)
        for index in range(len(table.header))
        for part in dict.fromkeys(part for row in table.rows for part in row[index].parts) or [""]
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_no_formula(f"{table.header[index]} {part}".strip()) for index, part in columns)
    writer.writerows(
        [_no_formula(row[index].parts.get(part, "")) for index, part in columns] for row in table.rows
    )
    return out.getvalue()


def _no_formula(cell: Any) -> Any:
    """A name that a spreadsheet would compute, as in =HYPERLINK(…), is made a text."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell


def as_markdown(table: Table) -> str:
    def line(cells: list[str]) -> str:
        escaped = [re.sub(r"([\\`|\[\]])", r"\\\1", escape(cell, quote=False)) for cell in cells]
        return f"| {' | '.join(escaped)} |"

    alignment = ["---", *["---:"] * (len(table.header) - 1)]
    rows = [[_markdown(value) for value in row] for row in table.rows]
    return "\n".join([line(table.header), f"|{'|'.join(alignment)}|", *map(line, rows)]) + "\n"


def _markdown(value: Value) -> str:
    text = f"**{value.text}**" if value.is_best else value.text
    return f"{text} ({value.small})" if value.small else text


# --------------------------------------------------------------------------------------------- scores


def scores_table(comparison: Comparison) -> Table:
    """Mean ± standard deviation over runs, by game and group, of training and beside it of evaluation."""
    evaluated = {group for (group, _), cell in comparison.cells.items() if len(cell.evaluations)}
    names = [
        name
        for group in comparison.groups
        for name in [group, *[evaluation_of(group)] * (group in evaluated)]
    ]
    rows = []
    for game in comparison.games:
        cells = {group: comparison.cell(group, game) for group in comparison.groups}
        trained = {group: cell.scores for group, cell in cells.items()}
        played = {group: cell.evaluations for group, cell in cells.items()}
        values = []
        for group, cell in cells.items():
            values.append(_score(game, cell, trained[group], _best(trained)))
            if group in evaluated:
                values.append(_score(game, cell, played[group], _best(played)))
        published = [_published_score(game, scores.get(game)) for scores in comparison.published.values()]
        rows.append([text_value(game), *values, *published])
    return Table("scores", ["Game", *names, *comparison.published], rows)


def evaluation_of(group: str) -> str:
    """The name of its column."""
    return f"{group} (evaluation)"


def _best(scores: dict[str, np.ndarray]) -> float | None:
    """The highest mean, if there is another one that it is higher than."""
    means = [of_group.mean() for of_group in scores.values() if len(of_group)]
    return float(max(means)) if len(means) > 1 else None


def _score(game: str, cell: Cell, scores: np.ndarray, best: float | None) -> Value:
    total = len(cell.all_runs)
    counts = {"runs": len(scores), "runs left out": total - len(scores)}
    if not len(scores):
        return empty(f"0 of {total} runs" if total else "no run", **counts)
    mean, deviation = float(scores.mean()), float(scores.std(ddof=1)) if len(scores) > 1 else None
    normalised, speed = human_normalized(game, mean), _mean_speed(cell.runs)
    count = f"{len(scores)} of {total} runs" if total > len(scores) else f"{total} run{'s' * (total > 1)}"
    parts = {"mean": mean, "std": deviation, **counts, "human-normalised": normalised}
    parts["steps/s"] = None if math.isnan(speed) else speed
    text = brief(mean) if deviation is None else f"{brief(mean)} ± {brief(deviation)}"
    small = count if normalised is None else f"{normalised:.2f} × human · {count}"
    return Value(text, mean, parts, small, is_best=mean == best)


def _mean_speed(runs: list[Run]) -> float:
    """NaN if it is known of none."""
    speeds = [run.speed for run in runs if not math.isnan(run.speed)]
    return float(np.mean(speeds)) if speeds else math.nan


def _published_score(game: str, score: float | None) -> Value:
    if score is None:
        return empty()
    normalised = human_normalized(game, score)
    parts = {"score": score} | ({} if normalised is None else {"human-normalised": normalised})
    return Value(brief(score), score, parts, "" if normalised is None else f"{normalised:.2f} × human")


# ---------------------------------------------------------------------------------------- other tables


def groups_table(comparison: Comparison) -> Table:
    rows = []
    for group in comparison.groups:
        listed = [x for x in comparison.listed if x.group == group]
        counted = [x.run for x in listed if x.standing == "counts"]
        count, total = len(counted), len(listed)
        count_value = Value(f"{count} of {total}", count, {"": count, "in all": total})
        time = duration(sum(x.run.seconds for x in listed))
        games = number(len({x.game for x in listed}))
        rows.append([text_value(group), games, count_value, number(_mean_speed(counted)), time])
    return Table("groups", ["Group", "Games", "Complete runs", "Steps/s", "Time"], rows)


def aggregates_table(normalised: NormalisedScores, found: Aggregates) -> Table:
    rows = []
    for who, estimates in found.items():
        scores = normalised.groups.get(who)
        runs = number(sum(map(len, scores))) if scores else text_value("published")
        games = number(len(normalised.games))
        rows.append([text_value(who), games, runs, *map(_estimate, estimates.values())])
    header = ["Group", "Games", "Runs", "Median", "IQM", "Mean", "Optimality gap"]
    return Table("aggregates", header, rows)


def _estimate(estimate: Estimate) -> Value:
    value, low, high = estimate
    parts = {"": value, "low": low, "high": high} if high > low else {"": value}
    return Value(str(estimate), value, parts)


def improvements_table(found: Improvements) -> Table:
    rows = [
        [text_value(a), text_value(b), _estimate(e), number(games)] for (a, b), (e, games) in found.items()
    ]
    return Table("improvement", ["Group", "Against", "Probability of improvement", "Games"], rows)


def settings_table(comparison: Comparison) -> Table:
    rows = [
        [text_value(name), *(text_value(" / ".join(by_group[group])) for group in comparison.groups)]
        for name, by_group in settings(comparison).items()
    ]
    return Table("settings", ["Setting", *comparison.groups], rows)


def runs_table(comparison: Comparison) -> Table:
    rows = [
        [
            *map(text_value, (x.game, x.group, x.run.seed, x.run.state, x.standing)),
            _return(x.run.score if len(x.run.curve.value) else None),
            _return(x.run.evaluation),
            number(x.run.step),
            number(x.run.target) if x.run.target else empty(),
            number(x.run.speed),
            duration(x.run.seconds),
            *map(text_value, (x.run.path.name, x.run.damage)),
        ]
        for x in comparison.listed
    ]
    header = "Game,Group,Seed,State,Standing,Score,Evaluation,Steps,Of,Steps/s,Time,Folder,Damage"
    return Table("runs", header.split(","), rows)


def _return(score: float | None) -> Value:
    return empty() if score is None else Value(brief(score), score, {"": score})


def notes_table(found: Notes) -> Table:
    rows = [[text_value(heading), text_value(line)] for heading, lines in found.items() for line in lines]
    return Table("notes", ["Caveat", "Where"], rows)
