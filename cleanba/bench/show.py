"""Output of a benchmark: tables and advice for the terminal, the record for bench.json, the figure."""

from pathlib import Path
from typing import Any

from rich.table import Table

from cleanba.bench.bottleneck import percent
from cleanba.bench.measure import LABELS, BenchResult, Parts
from cleanba.bench.tune import Setting, TuningResult
from cleanba.config.errors import UsageError
from cleanba.runtime.command import need_extra
from cleanba.runtime.messages import say


def parts_table(parts: Parts) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("steps/s", justify="right", no_wrap=True)
    table.add_column("of the ceiling", justify="right", no_wrap=True)
    table.add_column("", style="dim")
    for name, part in parts.items():
        of_ceiling = percent(part.rate / parts["ceiling"].rate)
        table.add_row(LABELS[name], f"{part.rate:,.0f}", of_ceiling, part.how)
    return table


def trials_table(tuned: TuningResult) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in Setting._fields:
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("steps/s", justify="right")
    given = next(iter(tuned.tried))
    for setting, rate in tuned.tried.items():
        cells = [
            str(value) if value != before or setting == given else "·"
            for value, before in zip(setting, given, strict=True)
        ]
        table.add_row(*cells, f"{rate:,.0f}" if rate else "out of memory")
    return table


def advice(tuned: TuningResult) -> str:
    if tuned.is_better:
        return f"{tuned.gain:+.0%} over your flags, in alternating runs:\n{tuned.best}"
    if len(tuned.tried) == 1:
        return "keep your flags: there was no time to try alternatives; give more --tune-minutes"
    if tuned.best_again:
        return "keep your flags: the best alternative was not faster in every repeated run"
    return "keep your flags: no alternative was faster"


def save_figure(record: dict[str, Any], path: Path) -> None:
    """Only where matplotlib is installed (the extra `plot`)."""
    try:
        need_extra(path.name, "matplotlib", "plot")
    except UsageError as missing:
        say(str(missing))
        return
    from cleanba.bench.plot import plot_bench

    plot_bench(record, path)


def tuning_record(tuned: TuningResult) -> dict[str, Any]:
    return {
        "trials": [s._asdict() | {"steps_per_second": rate} for s, rate in tuned.tried.items()],
        "best": tuned.best._asdict(),
        "given_again": tuned.given_again,
        "best_again": tuned.best_again,
        "advice": advice(tuned),
    }


def parts_record(result: BenchResult) -> dict[str, Any]:
    return {
        "parts": {
            name: {"label": LABELS[name], "steps_per_second": part.rate, **part._asdict()}
            for name, part in result.parts.items()
        },
        "ways_to_step": [{"how": str(way), **way._asdict(), "rates": r} for way, r in result.stepped.items()],
    }
