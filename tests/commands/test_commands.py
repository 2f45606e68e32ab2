"""Commands as a user types them, and what they print."""

import dataclasses
import runpy
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.runs import REPO, SMALL, read_rows, run_python

from cleanba import cleanba_ppo, cli

FIVE_UPDATES = [*SMALL, "--total-timesteps", "320"]


def command(*argv, cwd=REPO):
    return run_python(cwd, *argv, COLUMNS="120")


@pytest.mark.parametrize(
    ("script", "defaults"),
    [
        ("cleanba_ppo.py", ["(default: cleanba_ppo)", "(default: 64)", "(default: machado)"]),
        (
            "cleanba_ppo_envpool_impala_atari_wrapper.py",
            ["cleanba_ppo_envpool_impala_atari_wrapper)", "(default: 60)", "(default: impala)"],
        ),
        (
            "cleanba_ppo_envpool_impala_atari_wrapper_large.py",
            ["atari_wrapper_large)", "(default: 60)", "(default: 64 128 128)"],
        ),
        (
            "cleanba_ppo_envpool_machado_atari_wrapper.py",
            ["cleanba_ppo_envpool_machado_atari_wrapper)", "(default: 60)", "(default: machado)"],
        ),
        ("cleanba_impala.py", ["(default: cleanba_impala)", "(default: 20)", "(default: 0.0006)"]),
        (
            "cleanba_impala_envpool_impala_atari_wrapper.py",
            ["cleanba_impala_envpool_impala_atari_wrapper)", "(default: impala)", "(default: 40.0)"],
        ),
        (
            "cleanba_impala_envpool_machado_atari_wrapper.py",
            ["cleanba_impala_envpool_machado_atari_wrapper)", "(default: machado)"],
        ),
    ],
)
def test_help_shows_the_defaults_of_the_script(script, defaults, monkeypatch, capsys):
    """In this process: a process of its own takes seconds to import jax."""
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(REPO / "cleanba" / script), run_name="__main__")
    check_help(capsys.readouterr().out, defaults)


def test_help_of_make_train():
    shown = command("cleanba/cleanba_ppo_fit.py", "--help")
    assert shown.returncode == 0, shown.stderr
    check_help(shown.stdout, ["cleanba_ppo_fit)", "(default: nature)"])


def check_help(shown, defaults):
    text = " ".join(shown.replace("│", "").split())
    for default in defaults:
        assert default in text
    for group in ("experiment", "environment", "hardware", "network", "learning"):
        assert f"{group} options" in text


def test_every_flag_has_a_help_text():
    lines = command("cleanba/cleanba_ppo.py", "--help").stdout
    flags = [part for part in lines.split("│ --")[1:]]
    assert len(flags) == len(dataclasses.fields(cleanba_ppo.Args))
    for flag in flags:
        words = flag.replace("│", "").split("(default")[0].split()
        assert len(words) >= 3, flag


def test_a_run_from_the_command_line_prints_lines_and_a_summary(tmp_path):
    done = command("cleanba/cleanba_ppo.py", *FIVE_UPDATES, "--runs-dir", tmp_path, "--log-frequency", "2")
    assert done.returncode == 0, done.stderr
    title, compiling, *lines, summary, folder = done.stdout.splitlines()
    assert "a0-l0-d1" in title and compiling.startswith("compiling, ")
    assert [line.split(" | ")[0] for line in lines] == [
        "update 1/5",
        "update 2/5",
        "update 4/5",
        "update 5/5",
    ]
    assert (
        summary.startswith("done: 320 steps in 0:00:") and "steps/s after the first update, return" in summary
    )
    run_dir = Path(folder.removeprefix("everything is in "))
    assert len(read_rows(run_dir)) == 5
    assert (run_dir / "learning_curve.png").stat().st_size > 10_000
    assert list(run_dir.glob("events.out.tfevents.*"))


@pytest.mark.parametrize("algorithm", [pytest.param("ppo", marks=pytest.mark.slow), "impala"])
def test_the_cleanba_command_trains(tmp_path, monkeypatch, capsys, algorithm):
    monkeypatch.setattr(sys, "argv", ["cleanba", algorithm, *FIVE_UPDATES, "--runs-dir", str(tmp_path)])
    cli.main()
    assert "done: 320 steps" in capsys.readouterr().out
    (run_dir,) = tmp_path.iterdir()
    again = ["cleanba", algorithm, "--resume", str(run_dir), "--save-model"]  # which it was started without
    monkeypatch.setattr(sys, "argv", again)
    cli.main()
    shown = capsys.readouterr().out
    assert "it is already complete: give more --total-timesteps to go on" in shown and "update 1" not in shown
    assert list(run_dir.glob("*.cleanrl_model"))


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_cleanba_command_has_help(monkeypatch, capsys, name):
    monkeypatch.setattr(sys, "argv", ["cleanba", name, "--help"])
    with suppress(SystemExit):
        cli.main()
    assert f"usage: cleanba {name} " in capsys.readouterr().out


def test_an_unknown_cleanba_command_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cleanba", "pppo"])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 2
    assert "pppo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--env-id Brekout-v5",
            "--env-id Brekout-v5 is not an EnvPool or Gymnasium environment; did you mean Breakout",
        ),
        ("--env-options {}x", "--env-options {}x is not JSON"),
        (
            "--learner-device-ids 9",
            "--learner-device-ids 9 does not exist; this process has 8 cpu devices",
        ),
        ("--actor-device-ids 0 0", "--actor-device-ids names device 0 twice"),
        ("--actor-device-ids", "--actor-device-ids is empty"),
        ("--learner-device-ids 1 2 3", "--local-num-envs 64 cannot be split over 3 learners"),
        ("--num-steps 0", "--num-steps 0 is too small"),
        ("--num-steps 127", "--num-steps 127 cannot be split into --num-minibatches 4; try 124 or 128"),
        ("--learning-rate nan", "--learning-rate nan is not finite"),
        ("--clip-coef -0.1", "--clip-coef -0.1 is too small"),
        ("--total-timesteps 1000", "--total-timesteps 1000 is less than one update"),
        ("--inference-batch 63", "--inference-batch 63 does not divide --local-num-envs 64; try 32 or 64"),
        ("--runs-dir /proc/nowhere", "--runs-dir /proc/nowhere or Breakout-v5__cleanba_ppo__1__"),
        ("--runs-dir /dev/null", "--runs-dir /dev/null is not a folder"),
        (f"--exp-name {'x' * 300}", "cannot be written (File name too long)"),
        ("--num-minibatches 20000", "--num-minibatches 20000 is too many"),
        ("--network nature --env-id CartPole-v1", "--network nature needs images"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(flags, message, capsys):
    with pytest.raises(SystemExit) as exit:
        cleanba_ppo.main(argv=flags.split())
    assert exit.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


@pytest.mark.parametrize("flags", ["--seed x", "--no-such-flag", "--network lstm"])
def test_flags_that_cannot_be_parsed_are_refused(flags, capsys):
    with pytest.raises(SystemExit) as exit:
        cleanba_ppo.main(argv=flags.split())
    assert exit.value.code == 2
    assert flags.split()[0] in capsys.readouterr().err


def test_bad_input_is_refused_within_seconds_and_leaves_nothing(tmp_path):
    done = command(REPO / "cleanba/cleanba_ppo.py", "--learner-device-ids", "9", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_lock_files_name_no_address():
    for lock in REPO.glob("*.lock"):
        assert "://" not in lock.read_text(), lock
