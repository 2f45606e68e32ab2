"""The files that `cleanba report` writes, what it refuses, and what it costs."""

import csv
import itertools
import json
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import psutil
import pytest
from helpers.report import make_run, row

from cleanba import cleanba_report
from cleanba.analysis.report.make import REPORT_MARK, make_report
from cleanba.config.errors import UsageError
from cleanba.evaluation.atari_scores import ATARI_SCORES

MAX_RATIO = 6  # of a report of many runs to reading all of their rows


def test_every_figure_and_table_has_two_formats(made):
    _, out = made
    figures = {path.relative_to(out / "figures") for path in (out / "figures").rglob("*.*")}
    names = {str(path.with_suffix("")) for path in figures}
    assert {"overview", "aggregates", "profiles", "efficiency", "improvement"} < names
    assert {"curves/Pong-step", "curves/CartPole-v1-seconds"} < names
    assert {str(path) for path in figures} == {f"{name}{end}" for name in names for end in (".png", ".svg")}
    tables = {path.name for path in (out / "tables").iterdir()}
    names = {"groups", "scores", "settings", "runs", "aggregates", "improvement", "notes"}
    assert tables == {f"{name}{end}" for name in names for end in (".csv", ".md")}
    with (out / "tables" / "scores.csv").open() as file:
        (pong,) = (line for line in csv.DictReader(file) if line["Game"] == "Pong")
    assert pong["ppo runs"] == "3" and pong["ppo runs left out"] == "1"
    assert float(pong["DQN (published) score"]) == 18.9 and float(pong["ppo mean"]) > 0
    markdown = (out / "tables" / "scores.md").read_text().splitlines()
    assert (
        markdown[0] == "| Game | &lt;b&gt;impala&lt;/b&gt; | ppo | DQN (published) |" and len(markdown) == 9
    )
    assert "3 of 4 runs)" in markdown[7]


def test_the_same_runs_give_the_same_report_and_replace_the_old_one(made, tmp_path):
    runs, _ = made
    pair = []
    for attempt in range(2):
        out = tmp_path / "out"
        make_report([runs], group_by=("exp_name",), out=out)
        pair.append({path: path.read_bytes() for path in out.rglob("*.*")})
        if not attempt:
            (out / "figures" / "curves" / "Old-step.png").write_text("left by an earlier report")
    assert pair[0] == pair[1] and len(pair[0]) > 40
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_only_a_report_is_replaced(made, tmp_path):
    (tmp_path / "index.html").write_text("my own")
    with pytest.raises(UsageError, match="exists and is not a report; give another folder"):
        make_report([made[0]], group_by=("exp_name",), out=tmp_path)
    assert (tmp_path / "index.html").read_text() == "my own"


def earlier_report(out: Path) -> Path:
    """As a report leaves it, without most of its files."""
    for name in ("tables/scores.csv", "figures/overview.png", "figures/curves/Old-step.png"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("")
    (out / "index.html").write_text(REPORT_MARK)
    return out


@pytest.mark.parametrize(("root", "out"), [("exp/runs", "exp"), ("exp", "exp/runs"), ("exp", "exp/runs/..")])
def test_runs_below_the_report_are_never_replaced(tmp_path, monkeypatch, capsys, root, out):
    """`exp` held an earlier report, and then runs were put beside it."""
    monkeypatch.chdir(tmp_path)
    run = make_run(earlier_report(Path("exp")) / "runs", "Breakout-v5")
    before = list(Path("exp").rglob("*"))
    with pytest.raises(SystemExit) as exit:
        cleanba_report.main([root, "--out", out])
    assert exit.value.code == 2 and list(Path("exp").rglob("*")) == before
    assert f"--out {out} contains {run}, which is read; give another folder" in capsys.readouterr().err


def test_what_is_not_of_a_report_is_never_deleted(tmp_path, monkeypatch):
    run = make_run(tmp_path / "runs", "Breakout-v5")
    monkeypatch.chdir(earlier_report(tmp_path / "out"))
    for name in ("thesis.tex", "tables/mine.csv", "figures/curves/photo.jpg", "figures/a/b"):
        own = Path(name)
        own.parent.mkdir(exist_ok=True)
        for make in (own.touch, partial(own.symlink_to, run)):
            make()
            with pytest.raises(UsageError, match=f"contains {own.name}, which is not of a report; give anot"):
                make_report([run], group_by=("exp_name",), out=Path("."))
            own.unlink()
    make_report([run], group_by=("exp_name",), out=Path("."))
    assert "Breakout" in Path("tables/scores.csv").read_text()
    assert not Path("figures/curves/Old-step.png").exists()


def test_any_names_and_many_groups(tmp_path, capsys):
    names = ["a$\\frac$", "_hidden", "b[/b]", "c\x00d", "R²", "x/y", "日本", "lone \ud800", "n" * 300]
    for number, name in enumerate(names):
        make_run(tmp_path / "runs", "Breakout-v5", name, name=f"{number}")
        make_run(tmp_path / "runs", f"{name}-v0", "group with a rather long name", name=f"g{number}")
    cleanba_report.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    assert "b[/b]" in capsys.readouterr().out
    for path in (tmp_path / "out").rglob("*.svg"):
        ElementTree.parse(path)
    assert len(list((tmp_path / "out" / "figures" / "curves").iterdir())) == 4 * 10


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("nowhere", "nowhere is not a folder; give run folders or their parents"),
        (".", "no run found in .; give run folders or their parents"),
        ("runs --group-by nothing", "--group-by nothing: no run has this flag"),
        ("runs --group-by env_id", "--group-by env_id: games are always kept apart; leave it out"),
        (
            "runs --baseline none.csv",
            "--baseline none.csv is neither a file nor a baseline that comes with Cleanba; these",
        ),
        (
            "runs --baseline cleanba-paper --systems rainbow",
            "none of cleanba-paper has such a name; it has",
        ),
        ("runs --systems PPO", "--systems PPO needs a --baseline"),
        ("runs --steps 0", "--steps 0 is too small"),
        ("runs --out file", "--out file exists and is not a report; give another folder"),
        ("runs --out file/in", "--out file/in cannot be written"),
    ],
)
def test_bad_input_is_refused(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    if argv.startswith("runs"):
        make_run(tmp_path / "runs", "Breakout-v5")
    with pytest.raises(SystemExit) as exit:
        cleanba_report.main(argv.split())
    assert exit.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_many_runs_take_little_time_and_memory(tmp_path):
    """57 games × 3 seeds × 4 groups × 1,000 rows as long as real ones: a few times what it takes only to read
    every row and, including child processes, below 1 GiB."""
    filler = {f"losses/and_other_columns_{i}": 0.123456789012345 for i in range(20)}
    rng = np.random.default_rng(0)
    for game in ATARI_SCORES:
        returns = enumerate(np.cumsum(rng.random(1000)), 1)
        text = "".join(json.dumps(json.loads(row(u, value)) | filler) + "\n" for u, value in returns)
        for group, seed in itertools.product("abcd", (1, 2, 3)):
            path = make_run(tmp_path / "runs", f"{game}-v5", group, seed, [], updates=1000)
            (path / "metrics.jsonl").write_text(text)
    command = [sys.executable, "-m", "cleanba.cleanba_report", str(tmp_path / "runs")]
    ratios, peak = [], 0
    while len(ratios) < 2 and min(ratios, default=MAX_RATIO) >= MAX_RATIO:  # again, if the machine was busy
        start = time.perf_counter()
        read_every_row(tmp_path / "runs")
        read = time.perf_counter()
        process = psutil.Popen([*command, "--out", str(tmp_path / "out")], stdout=subprocess.DEVNULL)
        while process.poll() is None:
            peak = max(peak, memory_of(process))
            time.sleep(0.02)
        assert process.returncode == 0
        ratios.append((time.perf_counter() - read) / (read - start))
    assert min(ratios) < MAX_RATIO and peak < 2**30
    assert (tmp_path / "out" / "index.html").stat().st_size < 20e6


def read_every_row(folder: Path) -> None:
    for path in folder.rglob("metrics.jsonl"):
        with path.open("rb") as lines:
            for line in lines:
                json.loads(line)


def memory_of(process: psutil.Process) -> int:
    """In bytes, with child processes; shared memory is counted in each."""
    total = 0
    with suppress(psutil.Error):
        for member in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                total += member.memory_info().rss
    return total
