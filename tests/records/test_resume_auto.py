"""--resume auto: the newest unfinished run with the same arguments, or else a new run."""

import shutil

import pytest
from helpers.resuming import resume_auto, start_of
from helpers.runs import edit_args

from cleanba import cleanba_ppo
from cleanba.config.errors import UsageError
from cleanba.records.run_folder import MetricsFile


def test_auto_takes_the_newest_unfinished_run_with_the_same_arguments(killed):
    name, started = killed.name.rsplit("__", 1)
    newer, finished, empty, other, damaged = (
        killed.parent / f"{name}__{int(started) + delay}" for delay in (1, 2, 3, 4, 5)
    )
    for run_dir in (newer, finished, other):
        shutil.copytree(killed, run_dir)
    (finished / "finished.json").touch()
    empty.mkdir()
    edit_args(other, gamma=0.5)
    damaged.mkdir()
    (damaged / "args.json").write_text("{")
    (killed.parent / f"{name}__x").mkdir()
    assert resume_auto(killed).previous.run_dir == newer
    changed = resume_auto(killed, learner_device_ids=(1, 2), log_frequency=3, track=True)
    assert changed.previous.run_dir == newer


def test_auto_resumes_again_and_again_after_a_change_of_layout(killed):
    """--local-num-envs is per thread: with two threads the same command asks for twice the environments."""
    for _ in range(2):
        start = resume_auto(killed, num_actor_threads=2, local_num_envs=4)
        assert start.previous.run_dir == killed and start.args.local_num_envs == 2
        edit_args(killed, num_actor_threads=2, local_num_envs=2)  # as the resumed run records it
    with pytest.raises(UsageError, match="4 environments, which cannot be divided among 3 actor threads"):
        resume_auto(killed, num_actor_threads=3, local_num_envs=4)


def test_auto_distinguishes_experiments_by_their_number_of_environments(killed):
    assert resume_auto(killed, local_num_envs=8).previous is None
    assert resume_auto(killed, num_actor_threads=2, local_num_envs=2).previous.run_dir == killed


def test_auto_does_not_skip_a_run_that_it_cannot_read(killed, monkeypatch):
    def stale(*_, **__):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("cleanba.records.checkpoint.safe_open", stale)
    with pytest.raises(UsageError, match="Stale file handle"):
        resume_auto(killed)


@pytest.mark.parametrize("change", [dict(seed=2), dict(gamma=0.9), dict(total_timesteps=1280)], ids=str)
def test_auto_starts_a_new_run_for_other_arguments(killed, change):
    start = resume_auto(killed, **change)
    assert start.previous is None and start.update == 0


def test_auto_skips_a_run_that_is_still_training(killed, capsys):
    metrics = MetricsFile(killed)
    assert resume_auto(killed).previous is None
    assert "is in use: another process is training there" in capsys.readouterr().err
    metrics.close()


def test_auto_starts_a_new_run_where_nothing_was_saved(killed, capsys):
    shutil.rmtree(killed / "checkpoints")
    assert resume_auto(killed).previous is None
    assert "not resumed: " in capsys.readouterr().err
    nowhere = cleanba_ppo.Args(resume="auto", runs_dir=str(killed / "nowhere"))
    assert start_of(nowhere, set()).previous is None


def test_auto_does_not_resume_a_finished_run(killed):
    cleanba_ppo.main(argv=["--resume", str(killed)])
    assert (killed / "finished.json").exists()
    assert resume_auto(killed).previous is None
