"""Compare two runs, update by update: `cleanba diff RUN RUN`."""

import dataclasses
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from cleanba.sebulba.args import RunArgs, UsageError, flag
from cleanba.sebulba.command import command
from cleanba.sebulba.metrics import Row, read_rows
from cleanba.sebulba.resume import LOGGING

DESCRIPTION = """Compare two runs by the digests of their updates.

Exit code: 0 identical, as far as both go; 1 not identical; 2 they cannot be compared."""

DIGESTS = ("data_digest", "params_digest")
NO_BIT = {"env_stepping", "env_threads"}  # flags that change none
PART = ("sizes", "code", "machine")  # what args.json has of each part of a run, besides its layout
NO_METRIC = {"update", "global_step", *DIGESTS}


@dataclass(frozen=True)
class Args:
    run_a: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """a run's folder"""
    run_b: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """another's"""


class Run(NamedTuple):
    path: Path
    record: dict[str, Any]  # args.json
    rows: dict[int, Row]  # by update, those with digests


class Drift(NamedTuple):
    """How far a metric of two runs is apart."""

    metric: str
    first: float  # at the first update that differs
    most: float
    where: int  # the update of the most


# ------------------------------------------------------------------------------------------------ reading


def read_run(path: Path) -> Run:
    try:
        record = json.loads((path / "args.json").read_text())
        rows = list(read_rows(path / "metrics.jsonl"))
    except OSError as error:
        raise UsageError(f"{path} is not a run's folder: {error.filename}: {error.strerror}") from error
    except (ValueError, RecursionError):
        record = None
    if not is_record(record):
        raise UsageError(f"{path} has a damaged args.json; compare another run")
    complete = [row for row in rows if type(row.get("update")) is int and row.keys() >= set(DIGESTS)]
    by_update = {row["update"]: row for row in complete}
    if not by_update:
        raise UsageError(f"{path} has no complete update in metrics.jsonl; compare another run")
    return Run(path, record, by_update)


def is_record(record: Any) -> bool:
    """Everything that is looked up in it has the right type."""
    groups = ("args", "plan", "env_options")
    if not isinstance(record, dict) or not all(isinstance(record.get(name), dict) for name in groups):
        return False
    parts = record.get("parts")
    return isinstance(parts, list) and all(
        isinstance(part, dict) and all(isinstance(part.get(name, {}), dict) for name in PART)
        for part in parts
    )


def check_comparable(a: Run, b: Run) -> None:
    """The n-th update must be the same thing in both."""
    machinery = {field.name for field in dataclasses.fields(RunArgs)}
    for what, of in {
        "environments": lambda run: run.record["args"].get("env_id"),
        "algorithms, by their flags": lambda run: sorted(map(flag, run.record["args"].keys() - machinery)),
        "steps per update": lambda run: run.record["plan"].get("batch_size"),
        "digests, of other versions of Cleanba": lambda run: run.record.get("digested"),
    }.items():
        if of(a) != of(b):
            raise UsageError(f"they have other {what}: {_text(of(a))} and {_text(of(b))}; nothing to compare")
    if not a.rows.keys() & b.rows.keys():
        raise UsageError("they have no update in common; nothing to compare")


def circumstances(run: Run) -> dict[str, Any]:
    """What was recorded of a run that its bits may depend on. Of a resumed part, what is new in it."""
    found = {
        flag(name) + (" (changes no bit)" if name in NO_BIT else ""): value
        for name, value in run.record["args"].items()
        if name not in LOGGING | {"exp_name"}
    }
    found |= {f"environment's {name}": value for name, value in run.record["env_options"].items()}
    before: dict[str, Any] = {}
    for number, part in enumerate(run.record["parts"], start=1):
        here = {"layout": part.get("layout")}
        for group in PART:
            here |= part.get(group, {})
        if number > 1:
            here["resumed after update"] = part.get("from_update")
        new = {name: value for name, value in here.items() if name not in before or before[name] != value}
        found |= {f"part {number}: {name}" if number > 1 else name: value for name, value in new.items()}
        before = here
    return found


# ---------------------------------------------------------------------------------------------- comparing


def first_difference(a: Run, b: Run) -> tuple[int, str] | None:
    """The first update that differs, and which of its digests does first."""
    for update in sorted(a.rows.keys() & b.rows.keys()):
        for digest in DIGESTS:  # an update's params come from its data
            if a.rows[update][digest] != b.rows[update][digest]:
                return update, digest
    return None


def drifts(a: Run, b: Run, first: int) -> list[Drift]:
    """Of the metrics of both that differ; not of times and speeds, which always do."""
    found = []
    updates = sorted(a.rows.keys() & b.rows.keys())
    for metric in a.rows[updates[-1]].keys() - NO_METRIC:
        apart = {u: _apart(a.rows[u].get(metric), b.rows[u].get(metric)) for u in updates}
        where = max(updates, key=lambda u: apart[u])
        if apart[where] and not metric.endswith("seconds") and "SPS" not in metric:
            found.append(Drift(metric, apart[first], apart[where], where))
    return sorted(found)


def _apart(x: Any, y: Any) -> float:
    return abs(x - y) if isinstance(x, int | float) and isinstance(y, int | float) else 0.0


# ------------------------------------------------------------------------------------------------ telling


def tell_circumstances(a: Run, b: Run) -> list[str]:
    of_a, of_b = circumstances(a), circumstances(b)
    names = [name for name in of_a | of_b if of_a.get(name) != of_b.get(name)]
    if not names:
        return ["all recorded circumstances are the same"]
    rows = [(name, _text(of_a.get(name)), _text(of_b.get(name))) for name in names]
    return ["circumstances that differ:", *_columns([("", "A", "B"), *rows])]


def tell_outcome(a: Run, b: Run, difference: tuple[int, str] | None) -> list[str]:
    """Whether they are identical, and if not, how far apart."""
    common = sorted(a.rows.keys() & b.rows.keys())
    lines = []
    for name, run in (("A", a), ("B", b)):
        if missing := set(range(1, max(run.rows) + 1)) - run.rows.keys():
            lines.append(f"{name} lacks the rows of {len(missing)} updates, {min(missing)} the first of them")
    if difference is None:
        lasts = max(a.rows), max(b.rows)
        longer = "A" if lasts[0] > lasts[1] else "B"
        more = f"; {longer} goes on to update {max(lasts)}" if lasts[0] != lasts[1] else ""
        return [*lines, f"identical through update {common[-1]}{more}"]
    update, digest = difference
    before = [u for u in common if u < update]
    same = f"identical through update {before[-1]}; " if before else ""
    if digest == "data_digest":
        what = "in its data first: actors or environments did something else"
    else:
        what = "in its params first: the learner made something else of the same actions and rewards"
    lines.append(f"{same}update {update} differs, {what}")
    apart = [(d.metric, f"{d.first:.3g}", f"{d.most:.3g}", str(d.where)) for d in drifts(a, b, update)]
    if apart:
        lines += ["metrics are apart by:"]
        lines += _columns([("", f"update {update}", "at most", "in update"), *apart])
    return lines


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value)) or "-"
    return "-" if value is None else " ".join(str(value).split()) or '""'


def _columns(rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "   ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command() as console:
        args = tyro.cli(Args, args=argv, prog=prog, description=DESCRIPTION)
        a, b = read_run(args.run_a), read_run(args.run_b)
        check_comparable(a, b)
        difference = first_difference(a, b)
        told = [*tell_circumstances(a, b), *tell_outcome(a, b, difference)]
        lines = [f"A  {a.path}", f"B  {b.path}", *told]
        console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)
        sys.exit(0 if difference is None else 1)


if __name__ == "__main__":
    main()
