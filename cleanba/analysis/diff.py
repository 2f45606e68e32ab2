"""Compare two runs, update by update."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs, flag
from cleanba.config.marks import CHANGES_NO_BIT, ONLY_LOGS, marked
from cleanba.records.row import Row
from cleanba.records.run_folder import MAX_COUNT, DamagedRecord, is_number, read_record, read_rows
from cleanba.runtime.messages import printable

DIGESTS = ("data_digest", "params_digest")
NOT_METRICS = {"update", "global_step", *DIGESTS}


class RecordedRun(NamedTuple):
    path: Path
    record: dict[str, Any]  # args.json
    rows: dict[int, Row]  # rows with digests, by update


def read_run(path: Path) -> RecordedRun:
    try:
        record = read_record(path)
        rows = list(read_rows(path))
    except OSError as error:
        raise UsageError(f"{path} is not a run folder: {error.filename}: {error.strerror}") from error
    except DamagedRecord as damage:
        raise UsageError(f"{damage}; compare another run") from None
    complete = [row for row in rows if _count(row.get("update")) and row.keys() >= set(DIGESTS)]
    by_update = {row["update"]: row for row in complete}
    if not by_update:
        raise UsageError(f"{path} has no complete update in metrics.jsonl; compare another run")
    return RecordedRun(path, record, by_update)


def _count(value: Any) -> bool:
    return type(value) is int and 0 < value <= MAX_COUNT


def check_comparable(a: RecordedRun, b: RecordedRun) -> None:
    """The n-th update must mean the same in both."""
    common_flags = {field.name for field in dataclasses.fields(RunArgs)}
    for what, get in {
        "environments": lambda run: run.record["args"].get("env_id"),
        "algorithms, by their flags": lambda run: sorted(map(flag, run.record["args"].keys() - common_flags)),
        "steps per update": lambda run: run.record["plan"].get("batch_size"),
        "digests, made by different versions of Cleanba": lambda run: run.record.get("digested"),
    }.items():
        if get(a) != get(b):
            values = f"{_text(get(a))} and {_text(get(b))}"
            raise UsageError(f"the runs have different {what}: {values}; they cannot be compared")
    if not a.rows.keys() & b.rows.keys():
        raise UsageError("the runs have no update in common; they cannot be compared")


def circumstances(run: RecordedRun) -> dict[str, Any]:
    """Everything recorded that a run's bits may depend on. A resumed part lists only what changed."""
    found = {
        flag(name) + (" (changes no bit)" if name in marked(RunArgs, CHANGES_NO_BIT) else ""): value
        for name, value in run.record["args"].items()
        if name not in marked(RunArgs, ONLY_LOGS) | {"exp_name"}
    }
    found |= {"environment from": run.record["env_origin"]} if "env_origin" in run.record else {}
    found |= {f"environment's {name}": value for name, value in run.record["env_options"].items()}
    before: dict[str, Any] = {}
    for number, part in enumerate(run.record["parts"], start=1):
        here = {"layout": part.get("layout"), "algorithm's file": part.get("algorithm_file")}
        for group in ("sizes", "code", "machine"):
            here |= part.get(group, {})
        if number > 1:
            here["resumed after update"] = part.get("from_update")
        new = {name: value for name, value in here.items() if name not in before or before[name] != value}
        found |= {f"part {number}: {name}" if number > 1 else name: value for name, value in new.items()}
        before = here
    return found


def first_difference(a: RecordedRun, b: RecordedRun) -> tuple[int, str] | None:
    """The first update that differs, and the first of its digests that does."""
    for update in sorted(a.rows.keys() & b.rows.keys()):
        for digest in DIGESTS:  # an update's params come from its data
            if a.rows[update][digest] != b.rows[update][digest]:
                return update, digest
    return None


def drifts(a: RecordedRun, b: RecordedRun, first: int) -> list[tuple[str, str, str, str]]:
    """All metrics that differ, except times and speeds, which always do; how far they are apart in the
    `first` update that differs, at most, and in which update that is."""
    found = []
    updates = sorted(a.rows.keys() & b.rows.keys())
    for metric in sorted(a.rows[updates[-1]].keys() - NOT_METRICS):
        distance = {u: _distance(a.rows[u].get(metric), b.rows[u].get(metric)) for u in updates}
        worst = max(updates, key=lambda u: distance[u])
        if distance[worst] and not metric.endswith("seconds") and "SPS" not in metric:
            found.append((printable(metric), f"{distance[first]:.3g}", f"{distance[worst]:.3g}", str(worst)))
    return found


def _distance(x: Any, y: Any) -> float:
    return abs(x - y) if is_number(x) and is_number(y) else 0.0


def show_circumstances(a: RecordedRun, b: RecordedRun) -> list[str]:
    in_a, in_b = circumstances(a), circumstances(b)
    names = [name for name in in_a | in_b if in_a.get(name) != in_b.get(name)]
    if not names:
        return ["all recorded circumstances are the same"]
    rows = [(printable(name), _text(in_a.get(name)), _text(in_b.get(name))) for name in names]
    return ["circumstances that differ:", *_columns([("", "A", "B"), *rows])]


def show_outcome(a: RecordedRun, b: RecordedRun, difference: tuple[int, str] | None) -> list[str]:
    """Whether the runs are identical, and if not, how far apart they are."""
    common = sorted(a.rows.keys() & b.rows.keys())
    lines = []
    for name, run in (("A", a), ("B", b)):
        if missing := max(run.rows) - len(run.rows):
            first = next(update for update in itertools.count(1) if update not in run.rows)
            lines.append(
                f"{name} is missing {missing} row{'s' * (missing > 1)}, the first for update {first}"
            )
    if difference is None:
        ends = max(a.rows), max(b.rows)
        longer = "A" if ends[0] > ends[1] else "B"
        more = f"; {longer} continues to update {max(ends)}" if ends[0] != ends[1] else ""
        return [*lines, f"identical through update {common[-1]}{more}"]
    update, digest = difference
    before = [u for u in common if u < update]
    same = f"identical through update {before[-1]}; " if before else ""
    if digest == "data_digest":
        what = "in its data first: actors or environments behaved differently"
    else:
        what = "in its params first: the learner computed something else from the same actions and rewards"
    lines.append(f"{same}update {update} differs, {what}")
    if found := drifts(a, b, update):
        header = ("", f"update {update}", "at most", "in update")
        lines += ["metrics differ by:", *_columns([header, *found])]
    return lines


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value)) or "-"
    return "-" if value is None else printable(" ".join(str(value).split())) or '""'


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
