"""benchmarks/scores.py: time to score, over all pieces of a run."""

import json
import math
import os
import re
import runpy
import shlex
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.runs import REPO, read_args, read_rows

from cleanba.config.errors import UsageError
from cleanba.config.flags import parse_args
from cleanba.training.setup import lay_out

sys.path.insert(0, str(REPO / "benchmarks"))

import scores
from scores import Game, Piece, Point, Preset, ScoredRun, TotalClock

TINY = "--num-actor-threads 1 --local-num-envs 4 --num-steps 8 --hiddens 16"
CARTPOLE = Game("CartPole-v1", (15.0, 30.0))


@pytest.fixture
def make_run(tmp_path):
    """A run as it lies in its folder: rows of (step, seconds, score, games), one per update."""

    def make_run(rows, pieces, *, preset="ppo", game=CARTPOLE, seed=1, complete=True):
        run = ScoredRun(tmp_path, Preset(preset, ("cleanba/cleanba_ppo.py",)), game, seed, steps=400)
        run_dir = run.folder / f"{game.env_id}__{preset}__{seed}__100"
        run_dir.mkdir(parents=True)
        names = ("global_step", "seconds", "charts/avg_episodic_return", "stats/games")
        lines = [
            {"update": i, "charts/SPS_update": 10.0 * i, **dict(zip(names, row, strict=True))}
            for i, row in enumerate(rows, 1)
        ]
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run_dir / "args.json").write_text(json.dumps({"args": {}, "parts": [{"from_update": 0}]}))
        if complete:
            (run_dir / "finished.json").touch()
        written = {"command": run.command, "pieces": pieces}
        (run.folder / "pieces.json").write_text(json.dumps(written))
        return ScoredRun(tmp_path, run.preset, game, seed, steps=400)

    return make_run


# ------------------------------------------------------------------------------------------------- time


def test_seconds_count_every_start_and_every_stop():
    """Two pieces, each with 5 s to its run's first second and 2 s after its last row."""
    pieces = [Piece(1000, 1017, opened=1005, from_update=0), Piece(5000, 5027, opened=5005, from_update=2)]
    clock = TotalClock(pieces, {1: 6.0, 2: 10.0, 3: 14.0, 4: 30.0})
    assert clock.seconds(1, 6.0) == 5 + 6 and clock.seconds(2, 10.0) == 5 + 10
    assert clock.seconds(3, 14.0) == 17 + 5 + 4  # the first piece, the second start, four seconds there
    assert clock.seconds(4, 30.0) == 17 + 5 + 20


def test_pieces_that_were_lost_count_as_well():
    """The first was stopped before its run had a folder, the second before a checkpoint."""
    pieces = [Piece(0, 3), Piece(10, 50, opened=15), Piece(100, 150, opened=104)]
    assert TotalClock(pieces, {1: 6.0}).seconds(1, 6.0) == 3 + 40 + 4 + 6


def test_a_threshold_is_reached_with_a_hundred_games():
    points = [Point(10, 1.0, 50.0, 3), Point(20, 2.0, 19.0, 100), Point(30, 3.0, 21.0, 120)]
    assert scores.first_at(points, 20) == points[2]
    assert scores.first_at(points, 22) is None


def test_a_score_after_minutes_is_that_of_a_run_that_lasted_so_long():
    points = [Point(10, 30.0, 1.0, 100), Point(20, 90.0, 2.0, 100)]
    assert [scores.score_after(points, s) for s in (20, 60, 90)] == [None, 1.0, None]


# ----------------------------------------------------------------------------------------------- tables


def test_tables_by_hand(make_run):
    """Each run takes 10 s to start. Seeds 1 and 2 reach 15, seed 1 alone reaches 30."""
    pieces = [Piece(0, 500, opened=10)]
    first = [(100, 20.0, 10.0, 100), (200, 40.0, 16.0, 200), (300, 80.0, 31.0, 300)]
    second = [(100, 20.0, 40.0, 99), (200, 50.0, 15.0, 200), (300, 95.0, 20.0, 300)]
    third = [(100, 30.0, 5.0, 150)]
    runs = [make_run(first, pieces), make_run(second, pieces, seed=2)]
    runs += [make_run(third, pieces, seed=3, complete=False)]
    assert scores.tables([run.result() for run in runs]).splitlines() == [
        "| game | preset | score | seeds | steps: median (range) | seconds: median (range) |",
        "|---|---|---:|---:|---:|---:|",
        "| CartPole-v1 | ppo | 15 | 2 of 3 | 200 (200 to –) | 60 (50 to –) |",
        "| CartPole-v1 | ppo | 30 | 1 of 3 | – (300 to –) | – (90 to –) |",
        "",
        "| game | preset | 1 min | 2 min | 5 min | 9 min |",
        "|---|---|---:|---:|---:|---:|",
        "| CartPole-v1 | ppo | 16.0, 15.0, – | –, –, – | –, –, – | –, –, – |",
        "",
        "| game | preset | seed | steps | steps/s of an update | seconds | score at the end | pieces |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
        "| CartPole-v1 | ppo | 1 | 300 | 20 | 90 | 31.0 | 1 |",
        "| CartPole-v1 | ppo | 2 | 300 | 20 | 105 | 20.0 | 1 |",
        "| CartPole-v1 | ppo | 3 | 100 | 10 | 40 | 5.0 (not complete) | 1 |",
    ]


def test_results_are_written_without_starting_anything(make_run, tmp_path, capsys):
    make_run([(100, 20.0, 10.0, 100)], [Piece(0, 500, opened=10)], complete=False)
    flags = ["--games", "CartPole-v1:15,30", "--presets", "ppo=cleanba/cleanba_ppo.py", "--steps", "400"]
    with pytest.raises(SystemExit) as leaving:
        scores.main([*flags, "--seeds", "1", "2", "--minutes", "0", "--out", str(tmp_path)])
    assert leaving.value.code == 75  # not complete
    begun, missing = json.loads((tmp_path / "results.json").read_text())
    assert begun["final"] == [100, 30.0, 10.0, 100] and begun["reached"] == {"15": None, "30": None}
    assert missing["final"] is None and missing["curve"] == []
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "| ppo | 2 | 0 | 0 | 0 | – (not complete) | 0 |" in (tmp_path / "results.md").read_text()


def test_an_incomplete_last_line_is_no_point(make_run):
    run = make_run([(100, 20.0, 10.0, 100)], [Piece(0, 500, opened=10)])
    with (run.run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"update": 2, "global_st')
    assert run.points(run.rows()) == [Point(100, 30.0, 10.0, 100)]


def test_a_piece_whose_benchmark_was_killed_is_completed_from_its_files(make_run):
    """It ended with its last row, as far as one can know."""
    run = make_run([(100, 20.0, 10.0, 100)], [Piece(1000, 1000)], complete=False)
    os.utime(run.run_dir / "args.json", (1010, 1010))
    os.utime(run.run_dir / "metrics.jsonl", (1030, 1030))
    run = ScoredRun(run.folder.parent, run.preset, run.game, run.seed, steps=400)
    assert run.pieces == [Piece(1000, 1030, opened=1010, from_update=0)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--games", "Pong-v5"], "--games Pong-v5 has no thresholds; give e.g. Pong-v5:18"),
        (["--presets", "cleanba/cleanba_ppo.py"], "is not NAME=SCRIPT FLAGS; give e.g. ppo=cleanba"),
        (["--presets", "ppo=no_such.py"], "is not NAME=SCRIPT FLAGS"),
    ],
)
def test_bad_input_is_refused(flags, message, capsys, tmp_path):
    good = ["--games", "Pong-v5:18", "--presets", "ppo=cleanba/cleanba_ppo.py"]
    with pytest.raises(SystemExit) as leaving:
        scores.main([*good, "--steps", "400", "--out", str(tmp_path), "--minutes", "0", *flags])
    assert leaving.value.code == 2 and message in capsys.readouterr().err


def test_runs_of_another_command_are_not_continued(make_run):
    run = make_run([(100, 20.0, 10.0, 100)], [Piece(0, 500, opened=10)])
    with pytest.raises(UsageError, match="was begun as .*--total-timesteps=400; give another --out"):
        ScoredRun(run.folder.parent, run.preset, run.game, run.seed, steps=800)


def test_a_run_may_be_complete_at_its_last_threshold(make_run):
    """With 30 reached by a hundred games, not before; and without the flag only at its end."""
    pieces = [Piece(0, 500, opened=10)]
    few = make_run([(100, 20.0, 99.0, 99), (200, 40.0, 16.0, 200)], pieces, complete=False)
    many = make_run([(100, 20.0, 99.0, 99), (200, 40.0, 31.0, 200)], pieces, seed=2, complete=False)
    assert not many.is_complete
    few.stop_when_reached = many.stop_when_reached = True
    assert many.is_complete and not few.is_complete


# --------------------------------------------------------------------------- the commands of RESULTS.md

RESULTS = (REPO / "benchmarks/RESULTS.md").read_text()
COMMANDS = re.findall(r"^\|[^|]+\| `(--games [^`]+)` \|", RESULTS, re.MULTILINE)


@pytest.mark.parametrize("flags", COMMANDS)
def test_the_commands_that_need_a_gpu_are_complete(flags, tmp_path, monkeypatch):
    """Machine time is short: they must not fail for a flag. This is as far as one comes without a GPU."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        scores.main([*shlex.split(flags), "--minutes", "0"])
    assert leaving.value.code == 75
    (out,) = Path("runs/scores").iterdir()
    commands = [run["command"] for run in json.loads((out / "results.json").read_text())]
    for script, *given in commands:
        module = runpy.run_path(str(REPO / script))
        args = parse_args(module.get("ARGS") or module["Args"](), description="", argv=given)
        lay_out(args, 1)


def test_all_commands_are_tested():
    assert len(COMMANDS) == RESULTS.count("--out runs/scores/") > 5


# ---------------------------------------------------------------------------------------------- running


@pytest.fixture
def scripted(tmp_path):
    """A run whose script is given."""

    def scripted(code):
        script = tmp_path / "script.py"
        script.write_text(code)
        return ScoredRun(tmp_path / "out", Preset("fake", (str(script),)), CARTPOLE, 1, steps=400)

    return scripted


def test_a_failed_run_does_not_stop_the_others(scripted, capfd):
    run = scripted("raise SystemExit('no such game')")
    assert scores.train_all([run, run], math.inf) == 1
    assert len(run.pieces) == 2 and "no such game" in (run.folder / "output").read_text()
    assert "fake, CartPole-v1, seed 1: ended with exit code 1" in capfd.readouterr().err


def test_an_interrupted_benchmark_leaves_no_training_behind(scripted, monkeypatch):
    """And knows how long it was."""
    run = scripted("import os, time; print(os.getpid(), flush=True); time.sleep(60)")

    def interrupted(seconds):
        if (run.folder / "output").read_text().endswith("\n"):
            raise KeyboardInterrupt
        time.sleep(0.01)

    monkeypatch.setattr(scores, "time", SimpleNamespace(**vars(time) | {"sleep": interrupted}))
    with pytest.raises(KeyboardInterrupt):
        run.train(math.inf)
    with pytest.raises(ProcessLookupError):
        os.kill(
            int((run.folder / "output").read_text()), signal.SIGKILL
        )  # if it were left, then not for long
    (piece,) = ScoredRun(run.folder.parent, run.preset, CARTPOLE, 1, steps=400).pieces
    assert piece.ended > piece.started and piece.opened is None


def test_a_run_is_stopped_at_its_last_threshold(scripted):
    """It goes on until somebody stops it; its row of the second start reaches both thresholds."""
    row = {"update": 1, "global_step": 8, "seconds": 1.0, "charts/avg_episodic_return": 30.0}
    row |= {"stats/games": 100, "charts/SPS_update": 8.0}
    run = scripted(f"""if True:
        import json, pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        folder = pathlib.Path(next(a for a in sys.argv if a.startswith("--runs-dir=")).split("=")[1], "r__1")
        folder.mkdir(exist_ok=True)
        (folder / "args.json").write_text(json.dumps(dict(args=dict(), parts=[dict(from_update=0)])))
        (folder / "metrics.jsonl").write_text(json.dumps({row!r}) + chr(10))
        time.sleep(60)""")
    run.stop_when_reached = True
    assert scores.train_all([run], math.inf) == 0
    assert run.result()["complete"] and run.result()["reached"]["30"][0] == 8


@pytest.mark.slow
def test_a_training_that_is_cut_off_is_continued(tmp_path, monkeypatch):
    """Its seconds are those of both pieces."""
    flags = ["--games", "CartPole-v1:1", "--presets", f"tiny=cleanba/cleanba_ppo.py {TINY}", "--seeds", "1"]
    flags += ["--steps", "32000", "--out", str(tmp_path)]

    def deadline_in_update_three():
        files = list(tmp_path.glob("*/*/metrics.jsonl"))
        return math.inf if files and files[0].read_bytes().count(b"\n") > 2 else 0.0

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as leaving:
        patch.setattr(scores, "time", SimpleNamespace(**vars(time) | {"monotonic": deadline_in_update_three}))
        scores.main([*flags, "--minutes", "9"])
    assert leaving.value.code == 75
    (run_dir,) = (path.parent for path in tmp_path.glob("*/*/metrics.jsonl"))
    done = len(read_rows(run_dir))
    assert 3 <= done < 1000
    with pytest.raises(SystemExit) as leaving:
        scores.main(flags)
    assert leaving.value.code == 0
    assert read_args(run_dir)["parts"][1]["from_update"] == done
    (result,) = json.loads((tmp_path / "results.json").read_text())
    assert result["complete"] and result["pieces"] == 2 and result["final"][0] == 32000
    check_seconds(result, *json.loads((run_dir.parent / "pieces.json").read_text())["pieces"])


def check_seconds(result, first, second):
    (started, ended, *_), (started_again, ended_again, *_) = first, second
    seconds = [seconds for _, seconds, *_ in result["curve"]]
    assert seconds == sorted(seconds)
    assert seconds[0] < ended - started
    total = ended - started + ended_again - started_again
    rows = result["final"][1]
    assert ended - started < rows < total
    assert result["reached"]["1"][1] <= rows
