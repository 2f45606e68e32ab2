"""Runs of strangers, or damaged ones, do not end a report, keep it waiting, or act through its files."""

import csv
import json
import math
import os
from pathlib import Path

import pytest
from helpers.report import compare_runs, make_run, row

from cleanba import cleanba_diff, cleanba_report
from cleanba.analysis.diff import read_run as read_recorded
from cleanba.analysis.report.compare import natural_key
from cleanba.analysis.report.published import read_published
from cleanba.analysis.report.runs import read_run
from cleanba.analysis.report.tables import as_csv, as_markdown, scores_table
from cleanba.config.errors import UsageError
from cleanba.records.run_folder import DamagedRecord, read_record
from cleanba.records.run_status import run_status

HOSTILE = {  # name: lines of metrics.jsonl
    "huge": [row(1, 1e308), row(2, -1e308), row(3, 1e308)],
    "not a number": [row(1, math.nan), row(2, math.inf), row(3, None)],
    "late": [row(1, 1.0).replace('"global_step": 100', '"global_step": 1e308'), row(2, 1.0)],
    "slow": [row(1, 1.0).replace('"seconds": 2.0', '"seconds": 1e308'), row(2, 1.0)],
    "fast": [row(1, 1.0).replace("50.0", "1e999"), row(2, 1.0)],
    "long": [row(1, 10**400), row(2, 1.0)],
}


def test_a_report_of_hostile_runs_is_made(tmp_path, capsys):
    for number, (name, lines) in enumerate(HOSTILE.items()):
        path = make_run(tmp_path / "runs", "Pong-v5", "a", seed=number, name=name)
        (path / "metrics.jsonl").write_text("".join(lines))
    make_run(tmp_path / "runs", "Pong-v5", "a", seed=10**400, name="seed")
    make_run(tmp_path / "runs", "Pong-v5", "1" * 5000, name="digits", total_timesteps=10**400)
    strange = make_run(tmp_path / "runs", "Pong-v5", "b", name="\udcff not UTF-8")
    (strange / "args.json").unlink()
    os.mkfifo(strange / "args.json")
    for name in ("metrics.jsonl", "events.out.tfevents.1"):
        (tmp_path / "runs" / name).mkdir()
        os.mkfifo(tmp_path / "runs" / name / name)
    cleanba_report.main([str(tmp_path / "runs"), "--out", str(tmp_path / "\udcff")])
    assert "the report is " in capsys.readouterr().out
    with (tmp_path / "\udcff/tables/runs.csv").open() as file:
        by_folder = {line["Folder"]: line for line in csv.DictReader(file)}
    assert by_folder["seed"]["Score"] == "3.0" and by_folder["huge"]["Standing"] == "not read"
    assert by_folder["late"]["Damage"] == "metrics.jsonl has damaged lines"
    assert "not a regular file" in by_folder["metrics.jsonl"]["Damage"]
    assert "not a regular file" in by_folder["events.out.tfevents.1"]["Damage"]
    assert by_folder["� not UTF-8"]["Damage"].startswith("args.json is damaged")


@pytest.mark.parametrize("name", ["args.json", "metrics.jsonl"])
def test_a_fifo_is_not_waited_for(tmp_path, capsys, name):
    a, b = (make_run(tmp_path, "Pong-v5", seed=seed) for seed in (1, 2))
    (b / name).unlink()
    os.mkfifo(b / name)
    assert read_run(b).state == "damaged"
    with pytest.raises(SystemExit) as exit:
        cleanba_diff.main([str(b), str(a)])
    assert exit.value.code == 2
    assert f"{b / name}: it is not a regular file" in capsys.readouterr().err


def test_names_are_no_formulas_and_no_html(tmp_path):
    names = ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "<script>x</script>", "[x](javascript:y)", "`a|b\\"]
    for number, name in enumerate(names):
        make_run(tmp_path, "Breakout-v5", name, returns=[-2.5], name=f"{number}")
    table = scores_table(compare_runs(tmp_path))
    header, values = csv.reader(as_csv(table).splitlines())
    assert not {name[0] for name in header} & set("=+-@") and "'=HYPERLINK(1) mean" in header
    assert "-2.5" in values, "numbers stay numbers"
    header = as_markdown(table).splitlines()[0]
    assert "&lt;script&gt;" in header and "<" not in header
    assert r"\[x\](javascript:y)" in header and r"\`a\|b\\" in header


def test_a_published_score_must_be_possible(tmp_path):
    (tmp_path / "scores.csv").write_text("game,system,score\nPong,DQN,1e308\n")
    with pytest.raises(UsageError, match="the score '1e308' is not a number"):
        read_published(tmp_path / "scores.csv")


def test_numbers_in_names_may_be_of_any_length():
    assert sorted(["a10", "a2", "9" * 5000], key=natural_key) == ["9" * 5000, "a2", "a10"]


@pytest.mark.parametrize("levels", [100, 900, 100_000])
def test_a_record_of_endless_nesting_is_damaged(tmp_path, capsys, levels):
    """Python reads and prints only so many levels, and reads more than it prints."""
    good, deep = (make_run(tmp_path, "Pong-v5", name=name, gamma="x") for name in ("good", "deep"))
    text = (deep / "args.json").read_text().replace('"x"', "[" * levels + "]" * levels)
    (deep / "args.json").write_text(text)
    with pytest.raises(UsageError, match=r"has a damaged args\.json; compare another run"):
        read_recorded(deep)
    with pytest.raises(DamagedRecord):
        read_record(deep)
    cleanba_report.main([str(tmp_path), "--out", str(tmp_path / "report")])
    assert "the report is " in capsys.readouterr().out and read_run(good).state == "finished"
    assert read_run(deep).damage == "args.json is damaged" and run_status(deep).state == "damaged"


def digested(folder: Path, *rows: dict) -> Path:
    path = make_run(folder, "Pong-v5", name=folder.name)
    lines = [dict(update=1, data_digest="0", params_digest="0") | row for row in rows]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_diff_reads_odd_rows(tmp_path, capsys):
    """A last update of 10^15 would be a list of as many missing ones; control characters steer a terminal."""
    a = digested(
        tmp_path / "a", {"x": 10**400, "y": 1.0, "\x1b[2J": 1}, {"update": 10**15}, {"update": 10**21}
    )
    b = digested(tmp_path / "b", {"x": 1.0, "y": 1e308, "\x1b[2J": 2, "params_digest": "1"}, {"update": -1})
    record = json.loads((b / "args.json").read_text())
    record["args"] |= {"gamma": "\x1b[2J"}
    (b / "args.json").write_text(json.dumps(record))
    record["args"] |= {"gamma": 0.9}
    (a / "args.json").write_text(json.dumps(record))
    with pytest.raises(SystemExit) as exit:
        cleanba_diff.main([str(a), str(b)])
    out = capsys.readouterr().out
    assert exit.value.code == 1 and "A is missing 999999999999998 rows, the first for update 2" in out
    assert "\x1b" not in out and "update 1 differs" in out
