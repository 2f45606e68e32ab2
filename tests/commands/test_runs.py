"""`cleanba runs`, `cleanba completion`, presets by name, `cleanba --version`."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from io import StringIO

import pytest
from helpers.runs import SMALL
from rich.console import Console
from rich.text import Text

import cleanba
from cleanba import cleanba_completion, cleanba_runs, cli
from cleanba.algorithms import ALGORITHMS, PRESETS


@pytest.fixture
def runs_dir(tmp_path):
    """A finished run, a stopped one, one whose record is lost, and a folder that is none."""
    args = dict(env_id="CartPole-v1", exp_name="x", seed=1, clip_coef=0.1)
    record = {"args": args, "plan": {"updates": 10, "batch_size": 150_000}, "layout": "a0-l0-d1"}
    row = {"update": 10, "global_step": 1_500_000, "charts/avg_episodic_return": 12.5, "charts/SPS": 900.0}
    for name, last in (("done", row), ("half", row | {"update": 5, "global_step": 750_000})):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "args.json").write_text(json.dumps(record | {"algorithm": "ppo"}))
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(last) + "\n")
        (tmp_path / name / "checkpoints" / f"update-{last['update']}.safetensors").touch()
    (tmp_path / "done/finished.json").write_text("{}")
    for name in ("lost", "nothing"):
        (tmp_path / name).mkdir()
    (tmp_path / "lost/args.json").write_text("{")
    return tmp_path


def run(capsys, monkeypatch, *argv, columns=80):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "argv", ["cleanba", *map(str, argv)])
    cli.main()
    return capsys.readouterr().out


def test_runs_are_listed_with_how_to_resume(runs_dir, capsys, monkeypatch):
    shown = run(capsys, monkeypatch, "runs", runs_dir)
    table, _, commands = shown.partition("\n\n")
    lines = {line.split()[0]: line.split()[1:4] for line in table.splitlines()}
    assert lines[f"{runs_dir}/done"] == ["finished", "1.5M", "12.50"]  # whole, also in a pipe of 80 columns
    assert lines[f"{runs_dir}/half"] == ["stopped", "750k/1.5M", "12.50"]
    assert lines[f"{runs_dir}/lost"] == ["damaged", "0", "–"]
    assert len(lines) == 4
    assert f"cleanba ppo --resume {runs_dir}/half\n" in commands and "done" not in commands


def on_terminal(folder, width):
    with StringIO() as file:
        cleanba_runs.run(cleanba_runs.Args((folder,)), Console(file=file, force_terminal=True, width=width))
        return Text.from_ansi(file.getvalue()).plain.partition("\n\n")[0]


def test_on_a_terminal_names_are_folded_and_a_wide_one_has_the_speed(runs_dir):
    long = runs_dir / "sweep/BreakoutNoFrameskip-v4__cleanba_ppo_with_a_name__12__1795035500"
    (runs_dir / "half").rename(long.parent.mkdir() or long)
    shown = on_terminal(runs_dir, 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert {line.split()[0] for line in shown.splitlines()} >= {"done", "lost"}
    assert any(line.endswith("12__1795035500") for line in map(str.rstrip, shown.splitlines()))
    (start,) = (line for line in shown.splitlines() if "stopped" in line)
    assert start.split()[:2] == ["sweep/BreakoutNoFrameskip-v4__", "stopped"]
    assert re.search(r"evaluation +steps/s", on_terminal(runs_dir, 140))


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (30, ["demo/Pong__ppo__1__17"]),
        (12, ["demo/Pong__", "  ppo__1__17"]),
        (6, ["demo/", "  Pong"]),
    ],
)
def test_a_name_is_folded_after_its_parts(width, lines):
    assert cleanba_runs.fold("demo/Pong__ppo__1__17", width).split("\n")[: len(lines)] == lines
    assert all(len(line) <= width for line in cleanba_runs.fold("demo/Pong__ppo__1__17", width).split("\n"))


def test_a_run_that_was_killed_shows_where_it_resumes(runs_dir, capsys, monkeypatch):
    checkpoints = runs_dir / "half/checkpoints"
    (checkpoints / "update-5.safetensors").rename(checkpoints / "update-3.safetensors")
    assert "750k/1.5M, resumes at 450k  " in run(capsys, monkeypatch, "runs", runs_dir)
    records = map(json.loads, run(capsys, monkeypatch, "runs", runs_dir, "--json").splitlines())
    assert {record["resumes_at"] for record in records} == {None, 450_000}


def test_runs_as_json(runs_dir, capsys, monkeypatch):
    records = [json.loads(line) for line in run(capsys, monkeypatch, "runs", runs_dir, "--json").splitlines()]
    (half,) = [record for record in records if record["state"] == "stopped"]
    assert (half["step"], half["total_steps"], half["return"]) == (750_000, 1_500_000, 12.5)
    assert half["resume"].endswith("half")


HUGE = "1" + 400 * "0"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("metrics.jsonl", '"charts/avg_episodic_return": 12.5', '"charts/avg_episodic_return": "x"'),
        ("metrics.jsonl", '"charts/avg_episodic_return": 12.5', f'"charts/avg_episodic_return": {HUGE}'),
        ("metrics.jsonl", '"charts/SPS": 900.0', '"charts/SPS": [1]'),
        ("metrics.jsonl", "750000", HUGE),
        ("args.json", '"updates": 10', f'"updates": {HUGE}'),
        ("args.json", '"batch_size": 150000', '"batch_size": "x"'),
        ("evaluation.json", "{}", f'{{"scores": {{"episodic_return": {HUGE}}}}}'),
    ],
)
def test_one_odd_run_does_not_hide_the_others(runs_dir, capsys, monkeypatch, name, before, after):
    path = runs_dir / "half" / name
    text = path.read_text() if path.exists() else "{}"
    assert before in text
    path.write_text(text.replace(before, after))
    for argv in (["runs", runs_dir], ["runs", runs_dir, "--json"]):
        shown = run(capsys, monkeypatch, *argv, columns=200)
        assert all(folder in shown for folder in ("done", "half", "lost"))


@pytest.mark.parametrize("layout", ["a{}-l0-d2", "a0-l0-d{}"])
def test_a_layout_of_endless_digits_does_not_hide_the_others(runs_dir, capsys, monkeypatch, layout):
    record = json.loads((runs_dir / "half/args.json").read_text())
    (runs_dir / "half/args.json").write_text(json.dumps(record | {"layout": layout.format("9" * 5000)}))
    assert {record.folder.name for record in cleanba.runs(runs_dir)} == {"done", "half", "lost"}
    shown = run(capsys, monkeypatch, "runs", runs_dir)
    assert "done" in shown and f"cleanba ppo --resume {runs_dir}/half\n" in shown


def test_a_folder_whose_files_cannot_be_looked_at_does_not_hide_the_others(runs_dir, capsys, monkeypatch):
    """It can be listed, but not entered."""

    def denied(call, path, *args, **options):
        if "/half/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return call(path, *args, **options)

    for name in ("stat", "open"):
        monkeypatch.setattr(os, name, partial(denied, getattr(os, name)))
    states = {record.folder.name: record.status for record in cleanba.runs(runs_dir)}
    assert states == {"done": "finished", "half": "damaged", "lost": "damaged"}
    assert re.search(r"half +damaged", run(capsys, monkeypatch, "runs", runs_dir))


@pytest.mark.parametrize("algorithm", ["\x1b]0;pwned\x07", "ppo\nrm -rf ~", "\u202egnp.exe"])
def test_a_command_that_would_steer_the_terminal_is_not_offered(runs_dir, capsys, monkeypatch, algorithm):
    """Nor one that the terminal would show as another one."""
    record = json.loads((runs_dir / "half/args.json").read_text())
    (runs_dir / "half/args.json").write_text(json.dumps(record | {"algorithm": algorithm}))
    (runs_dir / "done/finished.json").unlink()
    (runs_dir / "done").rename(runs_dir / f"done{algorithm}")
    shown = run(capsys, monkeypatch, "runs", runs_dir)
    assert algorithm not in shown and "cleanba train" not in shown and "--resume" not in shown
    assert "… and 2 more; --json has all" in shown
    records = run(capsys, monkeypatch, "runs", runs_dir, "--json")
    assert algorithm not in records and records.count("--resume") == 2  # with escapes


@pytest.mark.parametrize(
    ("number", "shown"),
    [(999, "999"), (1_000, "1k"), (116_400, "116k"), (999_499, "999k"), (999_936, "1M"), (50_000_000, "50M")],
)
def test_short_numbers(number, shown):
    assert cleanba_runs.short(number) == shown


def test_the_version(capsys, monkeypatch):
    assert re.match(r"cleanba \d+\.\d+", run(capsys, monkeypatch, "--version"))


def test_usage_fits_80_columns_and_has_every_command(capsys, monkeypatch):
    shown = run(capsys, monkeypatch, "--help")
    assert max(map(len, shown.splitlines())) <= 80
    for name in (*ALGORITHMS, *PRESETS, *cli.COMMANDS):
        assert f"  {name}" in shown


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_it_is_for_and_where_its_values_come_from(name, capsys, monkeypatch):
    with pytest.raises(SystemExit, match="0"):
        run(capsys, monkeypatch, name, "--help")
    purpose = capsys.readouterr().out.split("╭")[0]
    assert f"usage: cleanba {name} " in purpose
    assert " for " in purpose.lower() or "fit" in purpose
    assert "alues " in purpose


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pppo"], "did you mean ppo?"),
        (["--env-id", "Pong-v5"], "a command comes first"),
        (["mine.py"], "did you mean `cleanba train mine.py`?"),
    ],
)
def test_a_command_that_does_not_exist(argv, message, capsys, monkeypatch):
    with pytest.raises(SystemExit, match="2"):
        run(capsys, monkeypatch, *argv)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_preset_trains_by_name(tmp_path, capsys, monkeypatch):
    flags = [*SMALL, "--num-minibatches", "1", "--total-timesteps", "128", "--runs-dir", tmp_path]
    assert "done: 128 steps" in run(capsys, monkeypatch, "ppo-continuous", *flags, "--env-id", "CartPole-v1")


def test_completion_knows_commands_flags_and_values(capsys, tmp_path):
    with pytest.raises(SystemExit):
        cleanba_completion.main(["bash"])
    script = capsys.readouterr().out
    assert len(script.encode()) < 2**17  # fish: of one argument
    lines = {
        "cleanba ppo-f": "ppo-fit",
        "cleanba ppo --total": "--total-timesteps",
        "cleanba impala --network n": "nature",
        "cleanba eval --gr": "--greedy",
        "cleanba bench --clip": "--clip-coef",
        "cleanba bench --train-s": "--train-seconds",
        "cleanba bench ppo --tune-": "--tune-minutes",
    }
    (tmp_path / "complete").write_text(
        script
        + "".join(
            f"COMP_WORDS=({line}); COMP_CWORD={line.count(' ')}; COMPREPLY=(); _tyro_cleanba; "
            'echo "${COMPREPLY[@]}"\n'
            for line in lines
        )
    )
    done = subprocess.run(["bash", tmp_path / "complete"], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == list(lines.values())
