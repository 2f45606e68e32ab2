"""Published scores to compare runs with: baselines that come with Cleanba, or a CSV of one's own."""

import csv
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cleanba.analysis.report.runs import as_text
from cleanba.config.errors import UsageError
from cleanba.evaluation.atari_scores import game_of
from cleanba.records.run_folder import is_number

BASELINES = {path.stem: path for path in sorted((Path(__file__).parent / "baselines").glob("*.csv"))}


class Published(NamedTuple):
    scores: dict[str, dict[str, float]]  # by system and game
    source: str = ""  # to be cited


def read_baseline(name: str, systems: tuple[str, ...] = ()) -> Published:
    """Of a baseline that comes with Cleanba, or of the CSV with this path; all systems, or those whose names
    contain one of `systems`."""
    path = BASELINES.get(name, Path(name))
    if not path.exists():
        raise UsageError(
            f"--baseline {name} is neither a file nor a baseline that comes with Cleanba; these are "
            f"{', '.join(BASELINES)}"
        )
    published = read_published(path)
    words = [word.lower() for word in systems]
    found = {x: scores for x, scores in published.scores.items() if any(word in x.lower() for word in words)}
    if words and not found:
        names = "; ".join(name.removesuffix(" (published)") for name in published.scores)
        raise UsageError(f"--systems {' '.join(systems)}: none of {name} has such a name; it has {names}")
    return published._replace(scores=found) if words else published


def read_published(path: Path) -> Published:
    """A CSV with the columns game, system and score, below lines with # that say where they are from."""
    found: dict[str, dict[str, float]] = {}
    source = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            line, number = file.readline(), 0
            while line.startswith("#"):
                source.append(as_text(line.strip("# \r\n")))
                line, number = file.readline(), number + 1
            fields = [name.strip().lower() for name in next(csv.reader([line]), [])]
            if not {"game", "system", "score"} <= set(fields):
                header = "; ".join(fields) or "nothing"
                raise UsageError(
                    f"--baseline {path} must be a CSV with the header game,system,score; it has {header}"
                )
            table = csv.DictReader(file, fields)
            for row in table:
                _add(found, row, f"--baseline {path}, line {1 + number + table.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"--baseline {path} cannot be read ({error}); give a CSV") from error
    return Published(found, " ".join(source))


def _add(found: dict[str, dict[str, float]], row: dict[str, str], line: str) -> None:
    if not row["game"] or not row["system"]:
        raise UsageError(f"{line}: the game or the system is missing")
    game, system = as_text(row["game"].strip()), as_text(row["system"].strip())
    scores = found.setdefault(f"{system} (published)", {})
    name = game_of(game) or game
    if name in scores:
        raise UsageError(f"{line}: a second score of {system} for {game}")
    with suppress(TypeError, ValueError):
        scores[name] = float(row["score"])
    if not is_number(scores.get(name)):
        raise UsageError(f"{line}: the score {row['score']!r} is not a number")
