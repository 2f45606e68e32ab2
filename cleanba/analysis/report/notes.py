"""What a reader of a report must know: no run is dropped or averaged away silently."""

import itertools

from cleanba.analysis.report.aggregates import NormalisedScores, common_range
from cleanba.analysis.report.compare import Cell, Comparison, ListedRun, natural_key, settings
from cleanba.analysis.report.runs import as_text
from cleanba.records.row import RECENT_GAMES

MAX_NAMED = 5
SAME_FRAMES = 0.98  # runs that differ by a last update are compared at the same number of frames

NO_COMMON_TIME = (
    "No mean over wall time, but a line for each seed: time counts from each run's own start, and one seed "
    "had its first return later than another its last"
)

Notes = dict[str, list[str]]  # by heading, a line per case


def notes(comparison: Comparison, normalised: NormalisedScores) -> Notes:
    found = _on_runs(comparison) | _on_groups(comparison) | _on_scores(comparison)
    found |= _on_aggregates(comparison, normalised)
    return {heading: lines for heading, lines in found.items() if lines}


# ----------------------------------------------------------------------------------------------------- runs


def _on_runs(comparison: Comparison) -> Notes:
    def are(standing: str) -> list[ListedRun]:
        return [x for x in comparison.listed if x.standing == standing]

    return {
        "Folders that could not be opened": comparison.unopened,
        "Runs without data": [
            f"{as_text(x.run.path.name)}: {x.run.damage or 'no update yet'}" for x in are("not read")
        ],
        "Runs without a finished episode": [_name(x) for x in are("no episode")],
        "Damaged files: only their intact part is used": [
            f"{_name(x)}: {x.run.damage}" for x in comparison.read if x.run.damage
        ],
        "Incomplete runs: drawn as thin dotted lines, left out of all scores": [
            f"{_name(x)}: {x.run.state} at {x.run.step:,} of {_or_unknown(x.run.target)} steps"
            for x in are("incomplete")
        ],
        "Runs with the same group, game and seed: only one of them counts": [
            f"{_name(x)}: {as_text(x.run.path.name)} does not count{_other_flags(x, comparison.group_by)}"
            for x in are("repeated")
        ],
    }


def _name(x: ListedRun) -> str:
    return f"{x.game}, {x.group}, seed {x.run.seed}"


def _or_unknown(steps: int | None) -> str:
    return f"{steps:,}" if steps else "an unknown number of"


def _other_flags(x: ListedRun, group_by: tuple[str, ...]) -> str:
    if not x.other_flags:
        return ""
    suggested = "exp_name" if "exp_name" in x.other_flags else x.other_flags[0]
    fix = f"--group-by {' '.join([*group_by, suggested])}"
    return f"; it has a different {', '.join(x.other_flags)}: use {fix} to separate them"


# --------------------------------------------------------------------------------------------------- groups


def _on_groups(comparison: Comparison) -> Notes:
    return {
        "Missing seeds": _missing_seeds(comparison),
        "Games that some groups lack": [
            f"{game}: not in {', '.join(lacking)}"
            for game in comparison.games
            if (lacking := [g for g in comparison.groups if (g, game) not in comparison.cells])
        ],
        "Settings that differ within a group": [
            f"{group}: {name} is {' or '.join(values)}"
            for name, by_group in settings(comparison).items()
            for group, values in by_group.items()
            if len(values) > 1
        ],
        "Scores taken at different numbers of frames": _mixed_frames(comparison),
        "Games with more than one env id": _mixed_env_ids(comparison),
    }


def _missing_seeds(comparison: Comparison) -> list[str]:
    """Seeds that other games of the same group have, then seeds that other groups have."""
    if "seed" in comparison.group_by:
        return []
    seeds: dict[str, set[str]] = {}  # by group
    for x in comparison.listed:
        if x.group in comparison.groups:
            seeds.setdefault(x.group, set()).add(str(x.run.seed))
    missing = [
        (f"{game}, {group}", seeds[group] - {str(run.seed) for run in cell.all_runs})
        for group, game in itertools.product(comparison.groups, comparison.games)
        if (cell := comparison.cells.get((group, game)))
    ]
    all_seeds = set().union(*seeds.values())
    missing += [(f"{group}, all games", all_seeds - present) for group, present in seeds.items()]
    return [f"{where}: {', '.join(sorted(lack, key=natural_key))}" for where, lack in missing if lack]


def _mixed_frames(comparison: Comparison) -> list[str]:
    lines = []
    for game in comparison.games:
        frames = {
            group: {run.step * run.frames for run in comparison.cell(group, game).runs}
            for group in comparison.groups
        }
        ends = set().union(*frames.values())
        if ends and min(ends) < SAME_FRAMES * max(ends):
            texts = [f"{g} {' and '.join(f'{n:,}' for n in sorted(has))}" for g, has in frames.items() if has]
            lines.append(f"{game}: {'; '.join(texts)}")
    return lines


def _mixed_env_ids(comparison: Comparison) -> list[str]:
    ids: dict[str, set[str]] = {}  # by game
    for x in comparison.read:
        ids.setdefault(x.game, set()).add(as_text(x.run.env_id))
    return [f"{game}: {' and '.join(sorted(has))}" for game, has in ids.items() if len(has) > 1]


# --------------------------------------------------------------------------------------------------- scores


def _on_scores(comparison: Comparison) -> Notes:
    counted = [x for x in comparison.listed if x.standing == "counts"]
    return {
        f"Scores over fewer than {RECENT_GAMES} episodes": [
            f"{_name(x)}: {x.run.episodes}"
            for x in counted
            if x.run.episodes is not None and x.run.episodes < RECENT_GAMES
        ],
        "Scores over an unknown number of episodes, as the training script logged only their mean": [
            _name(x) for x in counted if x.run.episodes is None
        ],
        "Games with one complete run of a group: nothing shows how its scores vary between seeds": [
            f"{group}: {', '.join(single)}"
            for group in comparison.groups
            if (single := [game for game in comparison.games if len(comparison.cell(group, game).runs) == 1])
        ],
        NO_COMMON_TIME: [
            f"{game}, {group}" for (group, game), cell in comparison.cells.items() if _is_disjoint(cell)
        ],
    }


def _is_disjoint(cell: Cell) -> bool:
    start, end = common_range(cell, "seconds")
    return bool(cell.runs) and start > end


# ----------------------------------------------------------------------------------------------- aggregates


def _on_aggregates(comparison: Comparison, normalised: NormalisedScores) -> Notes:
    return {
        "Games left out of the aggregates: they need a human score and a complete run of every group": [
            f"{game}: {reason}" for game, reason in normalised.left_out.items()
        ],
        "Groups left out of the aggregates": [
            f"{group}: no complete run of an Atari game"
            for group in comparison.groups
            if normalised.games and group not in normalised.groups
        ],
        "Published systems left out of the aggregates: they lack scores for some games": [
            f"{system}: {', '.join(missing)}"
            for system, scores in comparison.published.items()
            if (missing := [game for game in normalised.games if game not in scores])
        ],
        "Published scores of games without runs": [
            f"{system}: {', '.join(others) if len(others) <= MAX_NAMED else f'{len(others)} games'}"
            for system, scores in comparison.published.items()
            if (others := sorted(scores.keys() - set(comparison.games)))
        ],
    }
