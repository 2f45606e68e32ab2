"""The flags of a resumed run: its own, and the few that a new command may change."""

import dataclasses
import json
import shutil

import pytest
from helpers.resuming import resume, resume_auto, start_of
from helpers.runs import edit_args, read_args

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.config.errors import UsageError
from cleanba.training.open_records import change_of_processes


def test_flags_come_from_the_run(killed):
    args = resume(killed, "--learner-device-ids [1,2] --total-timesteps 1000 --log-frequency 7").args
    assert (args.env_id, args.num_steps, args.hiddens, args.gradient_chunk) == ("CartPole-v1", 16, (16,), 100)
    assert (args.learner_device_ids, args.total_timesteps, args.log_frequency) == ((1, 2), 1000, 7)
    assert args.runs_dir == str(killed.parent)


def test_a_run_below_the_current_folder_has_a_short_path_as_a_new_one_has(killed, monkeypatch):
    monkeypatch.chdir(killed.parent.parent)
    short = killed.relative_to(killed.parent.parent)
    for given in (killed, short):
        start = resume(given)
        assert start.previous.run_dir == short and start.args.runs_dir == str(short.parent)
    monkeypatch.chdir(killed)
    assert resume(".").previous.run_dir == killed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--gamma 0.9", "--gamma cannot change in a resumed run, which has 0.99; leave it out"),
        ("--seed 2", "--seed cannot change"),
        ("--concurrency true", "--concurrency cannot change"),
        ("--num-steps 32", "--num-steps cannot change"),
        ("--hiddens [8]", r"--hiddens cannot change in a resumed run, which has \(16,\)"),
        ("--update-epochs 2", "--update-epochs cannot change"),
        ("--total-timesteps 128", "--total-timesteps 128 is less than the 256 that .* has done; give more"),
        ("--local-num-envs 8", "has 4 environments, but 1 actor threads with --local-num-envs 8 have 8"),
        ("--num-actor-threads 3", "has 4 environments, which cannot be divided among 3 actor threads"),
        ("--actor-device-ids []", "has 4 environments, which cannot be divided among 0 actor threads"),
        ("--num-actor-threads 2 --local-num-envs 4", "2 actor threads with --local-num-envs 4 have 8"),
    ],
)
def test_flags_that_cannot_change_are_refused_by_name(killed, flags, message):
    with pytest.raises(UsageError, match=message):
        resume(killed, flags)


@pytest.mark.parametrize("flags", ["--gamma 0.99", "--hiddens [16]", "--local-num-envs 4"])
def test_flags_may_be_repeated_with_the_same_value(killed, flags):
    assert resume(killed, flags).update == 4


def test_environments_are_divided_among_the_new_actor_threads(killed):
    assert resume(killed, "--num-actor-threads 2").args.local_num_envs == 2
    assert resume(killed, "--actor-device-ids [0,1] --local-num-envs 2").args.local_num_envs == 2


def test_one_chunk_flag_overrides_the_other(killed):
    edit_args(killed, gradient_accumulation_steps=4)
    assert resume(killed, "--gradient-chunk 8").args.gradient_accumulation_steps is None


def test_deterministic_comes_from_the_new_command(killed):
    """XLA's flags are set before the run's own arguments are read."""
    edit_args(killed, deterministic=False)
    assert resume(killed, "").args.deterministic


def test_a_run_of_another_algorithm_is_refused(killed):
    with pytest.raises(UsageError, match="is a run of another algorithm, by its arguments .*--clip-coef"):
        resume(killed, algorithm=cleanba_impala)
    record = read_args(killed)
    shared = {field.name for field in dataclasses.fields(cleanba_impala.Args)}
    record["args"] = {name: value for name, value in record["args"].items() if name in shared}
    (killed / "args.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="is a run of another algorithm, by its arguments .*--clip-coef"):
        resume(killed)


@pytest.mark.parametrize(
    ("recorded", "algorithm", "said"),
    [
        ("my/own.py", "ppo", "is a run of my/own.py, not of ppo; resume it with the command that started it"),
        ("ppo", "my/own.py", "is a run of ppo, not of my/own.py"),
        ("my/own.py", "moved/own.py", ""),
    ],
)
def test_a_run_of_another_algorithm_with_the_same_flags_is_refused(killed, recorded, algorithm, said):
    record = read_args(killed) | {"algorithm": recorded}
    (killed / "args.json").write_text(json.dumps(record))
    args = cleanba_ppo.Args(resume=str(killed))
    if said:
        with pytest.raises(UsageError, match=said):
            start_of(args, set(), algorithm)
        assert resume_auto(killed, algorithm).previous is None
    else:
        assert start_of(args, set(), algorithm).previous.run_dir.name == killed.name
        assert resume_auto(killed, algorithm).previous.run_dir.name == killed.name


def test_a_flag_newer_than_the_run_has_its_default(killed):
    record = read_args(killed)
    del record["args"]["env_threads"]
    (killed / "args.json").write_text(json.dumps(record))
    assert resume(killed).args.env_threads is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run_dir: (run_dir / "args.json").unlink(), "is not a run folder: args.json: No such file"),
        (lambda run_dir: (run_dir / "args.json").write_text("{"), "has a damaged args.json"),
        (lambda run_dir: (run_dir / "args.json").write_text("[]"), "has a damaged args.json"),
        (lambda run_dir: shutil.rmtree(run_dir / "checkpoints"), "has no checkpoint to resume from"),
    ],
)
def test_a_folder_that_is_not_a_run_is_refused(killed, damage, message):
    damage(killed)
    with pytest.raises(UsageError, match=message):
        resume(killed)


@pytest.mark.parametrize(
    ("layout", "now", "said"),
    [
        ("a0-l0-d2", 1, ", was on 2 processes, now on 1"),
        ("a0-l0-d1", 2, ", was on 1 process, now on 2"),
        ("a0-l0,1-d2", 2, ""),
        ("", 1, ""),
    ],
)
def test_another_number_of_processes_is_said(layout, now, said):
    assert change_of_processes(layout, now) == said


def test_the_same_id_may_be_another_environment_here(run):
    """--env-backend auto takes EnvPool's, unless it is not installed or somebody has registered a class."""
    run_dir = run(total_timesteps=64)[0].run_dir
    record = read_args(run_dir)
    assert record["env_origin"] == "EnvPool"
    (run_dir / "args.json").write_text(
        json.dumps(record | {"env_origin": "a class or function given in Python"})
    )
    with pytest.raises(
        UsageError, match=r"the CartPole-v1 of .* is from a class .*, here it is from EnvPool"
    ):
        run(resume=str(run_dir), total_timesteps=128)
    (run_dir / "args.json").write_text(json.dumps({k: x for k, x in record.items() if k != "env_origin"}))
    run(resume=str(run_dir), total_timesteps=128)  # a run of before
