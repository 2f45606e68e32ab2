"""What a reader of a report must know: nothing is averaged away in silence."""

import itertools
from collections.abc import Iterable

from cleanrl_utils.report.compare import (
    Cell,
    Comparison,
    Listed,
    OverGames,
    as_text,
    in_common,
    natural,
    settings,
)
from cleanrl_utils.report.runs import RECENT_GAMES


def problems(comparison: Comparison, over: OverGames) -> dict[str, list[str]]:
    """By kind; of each kind a line for each case."""
    by_standing: dict[str, list[Listed]] = {}
    for x in comparison.listed:
        by_standing.setdefault(x.standing, []).append(x)
    counted = by_standing.get("counts", [])
    found: dict[str, list[str]] = {
        "Folders that could not be opened": comparison.failed,
        "Runs that could not be read": [
            f"{as_text(x.run.path.name)}: {x.run.damage or 'no update yet'}"
            for x in by_standing.get("not read", [])
        ],
        "Runs in which no game had ended": [_name(x) for x in by_standing.get("no game ended", [])],
        "Damaged files, of which the rest is used": [
            f"{_name(x)}: {x.run.damage}"
            for x in comparison.listed
            if x.run.damage and x.standing != "not read"
        ],
        "Short runs: drawn as thin dotted lines, not in scores": [
            f"{_name(x)}: {x.run.state} at {x.run.step:,} of {_or_unknown(x.run.target)} steps"
            for x in by_standing.get("short", [])
        ],
        "Runs with the same group, game and seed: one of them counts": [
            f"{_name(x)}: not {as_text(x.run.path.name)}{_other_flags(x, comparison.by)}"
            for x in by_standing.get("repeated", [])
        ],
        "Missing seeds": _missing_seeds(comparison),
        "Games that not every group has": [
            f"{game}: not in {', '.join(lacking)}"
            for game in comparison.games
            if (lacking := [g for g in comparison.groups if (g, game) not in comparison.cells])
        ],
        "Flags and circumstances that differ within a group": [
            f"{group}: {name} is {' or '.join(values)}"
            for name, by_group in settings(comparison).items()
            for group, values in by_group.items()
            if len(values) > 1
        ],
        "Scores at different numbers of frames": _mixed_frames(comparison),
        "Env ids that differ within a game": _mixed_env_ids(comparison),
        f"Scores over fewer than {RECENT_GAMES} games": [
            f"{_name(x)}: {x.run.games}"
            for x in counted
            if x.run.games is not None and x.run.games < RECENT_GAMES
        ],
        "Scores over an unknown number of games, as the script wrote them": [
            _name(x) for x in counted if x.run.games is None
        ],
        "Games with a single run that counts: intervals know nothing of its luck": _single_runs(comparison),
        "Curves whose seeds have no time in common: not drawn over time": [
            f"{game}, {group}" for (group, game), cell in comparison.cells.items() if _apart(cell)
        ],
        "Games without human-normalised scores of every group": [
            f"{g}: {why}" for g, why in over.left_out.items()
        ],
        "Groups that are in no aggregate of human-normalised scores": [
            f"{group}: no complete run"
            for group in comparison.groups
            if over.games and group not in over.scores
        ],
        "Published systems that are in no aggregate: they lack games": [
            f"{system}: {', '.join(lacking)}"
            for system, has in comparison.published.items()
            if (lacking := [game for game in over.games if game not in has])
        ],
        "Published scores of games that nobody ran": [
            f"{system}: {', '.join(others)}"
            for system, has in comparison.published.items()
            if (others := sorted(has.keys() - set(comparison.games)))
        ],
    }
    return {kind: lines for kind, lines in found.items() if lines}


def _other_flags(x: Listed, by: tuple[str, ...]) -> str:
    if not x.other_flags:
        return ""
    one = "exp_name" if "exp_name" in x.other_flags else x.other_flags[0]
    further = f"--group-by {' '.join([*by, one])}"
    return f", which has another {', '.join(x.other_flags)}: {further} tells them apart"


def _single_runs(comparison: Comparison) -> list[str]:
    """By group: which games."""
    found = []
    for group in comparison.groups:
        games = [game for game in comparison.games if len(comparison.cell(group, game).runs) == 1]
        found += [f"{group}: {', '.join(games)}"] if games else []
    return found


def _apart(cell: Cell) -> bool:
    start, end = in_common(cell, "seconds")
    return bool(cell.runs) and start > end


def _name(x: Listed) -> str:
    return f"{x.game}, {x.group}, seed {x.run.seed}"


def _or_unknown(steps: int | None) -> str:
    return f"{steps:,}" if steps else "an unknown number of"


def _missing_seeds(comparison: Comparison) -> list[str]:
    """Against the group's other games; and a line for each group that has fewer than another."""
    if "seed" in comparison.by:
        return []
    lines = []
    seeds: dict[str, set[str]] = {}
    for x in comparison.listed:
        if x.group in comparison.groups:
            seeds.setdefault(x.group, set()).add(str(x.run.seed))
    for group, game in itertools.product(comparison.groups, comparison.games):
        if cell := comparison.cells.get((group, game)):
            has = {str(run.seed) for run in cell.everyone}
            if missing := sorted(seeds[group] - has, key=natural):
                lines.append(f"{game}, {group}: {', '.join(missing)}")
    every = set().union(*seeds.values())
    lines += [
        f"{group}, all games: {', '.join(sorted(every - has, key=natural))}"
        for group, has in seeds.items()
        if every - has
    ]
    return lines


def _mixed_frames(comparison: Comparison) -> list[str]:
    lines = []
    for game in comparison.games:
        frames = {
            group: {run.step * run.frames for run in comparison.cell(group, game).runs}
            for group in comparison.groups
        }
        ends = set().union(*frames.values())
        if ends and min(ends) < 0.98 * max(ends):
            told = [f"{g} {_listed(f'{n:,}' for n in sorted(has))}" for g, has in frames.items() if has]
            lines.append(f"{game}: {'; '.join(told)}")
    return lines


def _mixed_env_ids(comparison: Comparison) -> list[str]:
    ids: dict[str, set[str]] = {}
    for x in comparison.listed:
        if x.standing != "not read":
            ids.setdefault(x.game, set()).add(as_text(x.run.env_id))
    return [f"{game}: {_listed(sorted(has))}" for game, has in ids.items() if len(has) > 1]


def _listed(texts: Iterable[str]) -> str:
    return " and ".join(texts)
