"""Sort runs into groups and games, and decide which of them count."""

import difflib
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cleanba.analysis.report.published import Published
from cleanba.analysis.report.runs import Run, as_text
from cleanba.config.errors import UsageError
from cleanba.evaluation.atari_scores import game_of
from cleanba.records.run_folder import is_number

PER_RUN_FLAGS = {"env_id", "seed", "runs_dir", "resume"}  # expected to differ between the runs of a group


class Cell(NamedTuple):
    """The runs of one group on one game, one per seed."""

    runs: list[Run]  # complete: only these count
    short: list[Run]  # incomplete: drawn, but in no score
    without_episodes: list[Run]  # no episode has finished

    @property
    def all_runs(self) -> list[Run]:
        return [*self.runs, *self.short, *self.without_episodes]

    @property
    def scores(self) -> np.ndarray:
        return np.array([run.score for run in self.runs])

    @property
    def evaluations(self) -> np.ndarray:
        """Of the runs whose model was saved."""
        return np.array([run.evaluation for run in self.runs if run.evaluation is not None])


class ListedRun(NamedTuple):
    """A run and its standing in the report."""

    run: Run
    group: str
    game: str
    standing: str  # counts, incomplete, repeated, no episode or not read
    other_flags: tuple[str, ...] = ()  # of a repeated run: those that differ from the run that counts


class Comparison(NamedTuple):
    group_by: tuple[str, ...]  # flags: runs with the same values form a group
    groups: list[str]
    games: list[str]
    cells: dict[tuple[str, str], Cell]  # by group and game
    listed: list[ListedRun]
    published: dict[str, dict[str, float]]  # scores by system and game
    source: str  # of the published scores
    steps: int | None  # at which all runs are compared; None: each at its own end
    unopened: list[str]  # folders that could not be opened

    @property
    def read(self) -> list[ListedRun]:
        return [x for x in self.listed if x.standing != "not read"]

    def cell(self, group: str, game: str) -> Cell:
        return self.cells.get((group, game), Cell([], [], []))


def compare(
    runs: list[Run],
    group_by: tuple[str, ...],
    published: Published = Published({}),
    steps: int | None = None,
    unopened: list[str] | None = None,
) -> Comparison:
    """`runs` were read up to `steps`. Runs whose flags are lost belong to no group."""
    _check_flags(runs, group_by)
    listed: list[ListedRun] = []
    same_seed: dict[tuple[str, str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: _sort_key(run, group_by)):
        group_is_known = set(group_by) & run.args.keys()
        if run.state in ("damaged", "empty") or not run.env_id or not group_is_known:
            listed.append(ListedRun(run, group_of(run, group_by), game_name(run), "not read"))
        else:
            same_seed.setdefault((group_of(run, group_by), game_name(run), str(run.seed)), []).append(run)
    cells: dict[tuple[str, str], Cell] = {}
    for (group, game, _), repetitions in same_seed.items():
        best = max(repetitions, key=lambda run: (len(run.curve.value) > 0, run.is_complete, run.path.name))
        listed += [ListedRun(run, group, game, *standing(run, best)) for run in repetitions]
        cell = cells.setdefault((group, game), Cell([], [], []))
        lists = {"counts": cell.runs, "incomplete": cell.short, "no episode": cell.without_episodes}
        lists[standing(best, best)[0]].append(best)
    groups = list(dict.fromkeys(group for group, _ in cells))
    games = sorted({game for _, game in cells}, key=natural_key)
    return Comparison(group_by, groups, games, cells, listed, *published, steps, unopened or [])


def standing(run: Run, best: Run) -> tuple[str, tuple[str, ...]]:
    """Standing and other flags of a run; `best` is the one that is used of the same group, game and seed."""
    if run is not best:
        names = sorted((run.args.keys() | best.args.keys()) - PER_RUN_FLAGS)
        return "repeated", tuple(n for n in names if run.args.get(n) != best.args.get(n))
    if not len(run.curve.value):
        return "no episode", ()
    return "counts" if run.is_complete else "incomplete", ()


def _check_flags(runs: list[Run], group_by: tuple[str, ...]) -> None:
    known = sorted(set().union(*(run.args for run in runs)))
    if "env_id" in group_by:
        raise UsageError("--group-by env_id: games are always kept apart; leave it out")
    for name in group_by:
        if known and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"--group-by {name}: no run has this flag; {hint}They have {', '.join(known)}")


def group_of(run: Run, group_by: tuple[str, ...]) -> str:
    values = [as_text(run.args.get(name, "–")) for name in group_by]
    if group_by == ("exp_name",):
        return values[0]
    return ", ".join(f"{name} {value}" for name, value in zip(group_by, values, strict=True))


def _sort_key(run: Run, group_by: tuple[str, ...]) -> tuple[Any, ...]:
    """By group, with numbers in numerical order, then by game, seed and folder."""
    values = [run.args.get(name) for name in group_by]
    group = [(0, x, []) if is_number(x) else (1, 0, natural_key(as_text(x))) for x in values]
    return (*group, game_name(run), natural_key(str(run.seed)), run.path)


def game_name(run: Run) -> str:
    """An Atari game without the rest of its env id, which differs between libraries."""
    return game_of(run.env_id) or as_text(run.env_id)


def natural_key(text: str) -> list[Any]:
    """Sorts 2 before 10."""
    parts = re.split(r"([0-9]{1,300})", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part.lower()) for part in parts]


# ------------------------------------------------------------------------------------------------- settings


def settings(comparison: Comparison) -> dict[str, dict[str, list[str]]]:
    """The values of each setting by group: flags that differ between runs, and always code and hardware."""
    runs_of = {group: [x.run for x in comparison.read if x.group == group] for group in comparison.groups}

    def values(get: Callable[[Run], dict[str, Any]], name: str) -> dict[str, list[str]]:
        return {
            group: list(dict.fromkeys(as_text(get(run).get(name, "–")) for run in runs))
            for group, runs in runs_of.items()
        }

    all_runs = list(itertools.chain.from_iterable(runs_of.values()))
    flags = dict.fromkeys(itertools.chain.from_iterable(run.args for run in all_runs))
    found = {name: values(lambda run: run.args, name) for name in flags if name not in PER_RUN_FLAGS}
    found = {n: v for n, v in found.items() if len(set(itertools.chain.from_iterable(v.values()))) > 1}
    about = dict.fromkeys(itertools.chain.from_iterable(run.about for run in all_runs))
    return found | {name: values(lambda run: run.about, name) for name in about}
