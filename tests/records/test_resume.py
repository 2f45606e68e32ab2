"""A resumed run is the same run, on any layout, with new episodes."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers.equivalence import check_lag, digests, distance
from helpers.ports import free_address
from helpers.resuming import resume
from helpers.runs import REPO, checkpoint_metadata, cut_back, read_args, read_rows, run_python

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.envs.envpool import Envs
from cleanba.envs.seeding import RESUMED, env_seeds
from cleanba.envs.spec import EnvStep
from cleanba.records import checkpoint
from cleanba.records.run_folder import InUse, MetricsFile

UPDATES = 10
TEN_UPDATES = dict(total_timesteps=UPDATES * 64, checkpoint_minutes=1e-9, keep_checkpoints=100)


class StatelessEnvs(Envs):
    """Observations and rewards depend on the last action only: resuming loses no state."""

    def reset(self):
        self.env, self.action = np.arange(self.batch, dtype=np.int32), np.zeros(self.batch, np.int32)

    def send(self, action, env):
        self.env, self.action = env, action

    def receive(self):
        obs = np.ones((self.batch, 4), np.float32)
        never = np.zeros(self.batch, np.bool_)
        reward = self.action.astype(np.float32)
        return EnvStep(self.env, obs, reward, never, never, reward, never)


@pytest.mark.parametrize("algorithm", [cleanba_ppo, cleanba_impala])
def test_learner_schedules_and_keys_go_on_exactly(run, monkeypatch, algorithm):
    """With environments that have no state, a resumed run equals one that was never stopped."""
    monkeypatch.setattr("cleanba.envs.envpool.Envs", StatelessEnvs)
    options = TEN_UPDATES | dict(algorithm=algorithm, concurrency=False)
    whole, rows = run(**options)
    killed = cut_back(whole.run_dir, 4)
    resumed, resumed_rows = run(**options, resume=str(killed))
    assert resumed.run_dir == killed
    assert digests(resumed_rows) == digests(rows) and len(set(digests(rows))) == UPDATES
    assert [r["charts/learning_rate"] for r in resumed_rows] == [r["charts/learning_rate"] for r in rows]


@pytest.mark.parametrize("concurrency", [False, True])
def test_two_runs_resumed_from_one_checkpoint_are_bit_identical(run, concurrency):
    options = TEN_UPDATES | dict(concurrency=concurrency)
    whole, rows = run(**options)
    one, other = (cut_back(whole.run_dir, 4) for _ in range(2))
    _, one_rows = run(**options, resume=str(one))
    _, other_rows = run(**options, resume=str(other))
    assert digests(one_rows) == digests(other_rows)
    assert [row["update"] for row in one_rows] == list(range(1, UPDATES + 1))
    assert digests(one_rows)[:4] == digests(rows)[:4]
    assert one_rows[4]["data_digest"] != rows[4]["data_digest"], "the episodes are new"
    check_lag(one_rows[:4], lag=int(concurrency))
    check_lag(one_rows[4:], lag=int(concurrency))


def test_episode_counts_and_time_continue(run):
    whole, rows = run(**TEN_UPDATES)
    _, resumed = run(**TEN_UPDATES, resume=str(cut_back(whole.run_dir, 6)))
    for name in ("seconds", "stats/games", "global_step"):
        values = [row[name] for row in resumed]
        assert values == sorted(values), name
    assert resumed[5] == rows[5] and resumed[6]["stats/games"] >= rows[5]["stats/games"] > 0
    assert resumed[6]["charts/avg_episodic_return"] == pytest.approx(
        rows[5]["charts/avg_episodic_return"], rel=0.5
    ), "the mean includes episodes from before"


def test_seeds_differ_between_resumes_and_between_environments():
    seeds = [env_seeds(1, range(1000))] + [env_seeds((1, RESUMED, count), range(1000)) for count in (1, 2, 3)]
    assert len({seed for part in seeds for seed in part}) == 4000


def test_a_run_resumed_twice_counts_twice(run, monkeypatch):
    seeds = []

    def recording_seeds(env, env_seeds, threads, **options):
        seeds.append(env_seeds)
        return Envs(env, env_seeds, threads, **options)

    monkeypatch.setattr("cleanba.envs.envpool.Envs", recording_seeds)
    whole, _ = run(**TEN_UPDATES)
    once = cut_back(whole.run_dir, 3)
    run(**TEN_UPDATES, resume=str(once))
    twice = cut_back(once, 6)
    run(**TEN_UPDATES, resume=str(twice))
    assert [checkpoint_metadata(twice, update)["resumes"] for update in (3, 6, 9)] == [0, 1, 2]
    assert [part["from_update"] for part in read_args(twice)["parts"]] == [0, 3, 6]
    assert seeds == [env_seeds(1, range(4)), *(env_seeds((1, RESUMED, count), range(4)) for count in (1, 2))]


def test_rows_are_synced_before_their_checkpoint_is_written(run, monkeypatch):
    events = []
    sync, save = MetricsFile.sync, checkpoint.save_checkpoint
    monkeypatch.setattr(MetricsFile, "sync", lambda self: events.append("rows") or sync(self))
    monkeypatch.setattr(checkpoint, "save_checkpoint", lambda *args: events.append("saved") or save(*args))
    run(**TEN_UPDATES)
    assert events == ["rows", "saved"] * UPDATES


def test_a_checkpoint_of_one_layout_resumes_on_another(run, monkeypatch):
    """One learner, then four, then two actor devices with two other learners: the run is the same."""
    monkeypatch.setattr("cleanba.envs.envpool.Envs", StatelessEnvs)
    options = TEN_UPDATES | dict(local_num_envs=8, total_timesteps=UPDATES * 128, inference_batch=4)
    whole, _ = run(**options)
    four = cut_back(whole.run_dir, 4)
    run(**options | dict(learner_device_ids=(1, 2, 3, 4)), resume=str(four))
    two = cut_back(four, 7)
    layout = dict(actor_device_ids=(0, 1), learner_device_ids=(2, 3), local_num_envs=4)
    last, rows = run(**options | layout, resume=str(two))
    assert [row["update"] for row in rows] == list(range(1, UPDATES + 1))
    assert distance(last.model.params, whole.model.params) < 1e-4
    layouts = [part["layout"] for part in read_args(two)["parts"]]
    assert layouts == ["a0-l0-d1", "a0-l1,2,3,4-d1", "a0,1-l2,3-d1"]


def test_a_checkpoint_of_one_process_resumes_on_two(run, tmp_path):
    """The second process does not see the run folder: it gets everything from process 0. The learning rate is
    high, so that wrong params would choose other actions."""
    options = TEN_UPDATES | dict(local_num_envs=8, total_timesteps=UPDATES * 128, inference_batch=4)
    options |= dict(learning_rate=0.05)
    whole, _ = run(**options)
    alone, together = (cut_back(whole.run_dir, 4) for _ in range(2))
    _, alone_rows = run(**options, resume=str(alone))
    (tmp_path / "elsewhere").mkdir()
    job = {"JAX_COORDINATOR_ADDRESS": free_address(), "JAX_NUM_PROCESSES": "2", "JAX_NUM_CPU_DEVICES": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "cleanba.cleanba_ppo", "--distributed", "--resume", together.name],
            cwd=cwd,
            env=os.environ | job | {"JAX_PROCESS_ID": str(rank), "PYTHONPATH": str(REPO)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, cwd in enumerate([together.parent, tmp_path / "elsewhere"])
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "a0-l0-d2 on cpu: " in outputs[0] and "resumed after update 4" in outputs[0]
    assert ", was on 1 process, now on 2" in outputs[0]
    rows = read_rows(together)
    assert [row["update"] for row in rows] == list(range(1, UPDATES + 1))
    assert rows[4]["data_digest"] == alone_rows[4]["data_digest"]
    assert rows[4]["losses/value_loss"] == pytest.approx(alone_rows[4]["losses/value_loss"], rel=1e-3)
    assert read_args(together)["args"]["local_num_envs"] == 4
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_complete_run_is_evaluated_without_training(run):
    """As after a preemption during the evaluation."""
    whole, rows = run(**TEN_UPDATES, save_model=True)
    again, again_rows = run(**TEN_UPDATES, save_model=True, resume=str(whole.run_dir))
    assert digests(again_rows[:-1]) == digests(rows[:-1]) and len(again_rows) == UPDATES + 1
    assert "eval/episodic_return" in again_rows[-1] and "eval/episodic_return" in rows[-1]
    assert distance(again.model.params, whole.model.params) == 0


def test_a_run_can_be_extended(run):
    whole, _ = run(**TEN_UPDATES, save_model=True)
    _, rows = run(**TEN_UPDATES | dict(total_timesteps=12 * 64), resume=str(whole.run_dir))
    assert [row["update"] for row in rows] == list(range(1, 13)), "the row of the evaluation is removed"


def test_a_damaged_checkpoint_falls_back_to_the_previous_one(killed, capsys):
    newest = killed / "checkpoints/update-4.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    cleanba_ppo.main(argv=["--resume", str(killed)])
    output = capsys.readouterr()
    assert "update-4.safetensors is damaged" in output.err and "resumed after update 3" in output.out
    assert [row["update"] for row in read_rows(killed)] == list(range(1, UPDATES + 1))


def test_a_second_process_is_refused_while_the_first_trains(killed):
    first = MetricsFile(killed)
    with pytest.raises(InUse, match="is in use: another process is training there"):
        resume(killed)
    first.close()
    resume(killed)


SLOW_UPLOAD = """
import sys, time
from cleanba import cleanba_ppo
from cleanba.training import finish, train

finish.check_upload = lambda args: None
train.upload_outcome = lambda *_: (open("uploading", "w").close(), time.sleep(float(sys.argv[1])))
cleanba_ppo.main(argv=sys.argv[2:])
"""


@pytest.mark.slow
def test_a_run_is_locked_until_after_the_upload_and_remembers_its_flags(killed, tmp_path):
    """It is resumed with --upload-model, stopped during the upload, and resumed without any flag."""
    first = subprocess.Popen(
        [sys.executable, "-c", SLOW_UPLOAD, "60", "--resume", str(killed), "--upload-model"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "uploading").exists():
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    second = run_python(tmp_path, "-c", SLOW_UPLOAD, "0", "--resume", killed)
    assert second.returncode == 2 and "is in use" in second.stderr
    first.terminate()
    assert "stopped by SIGTERM after update 10 of 10" in first.communicate(timeout=30)[1]
    assert first.returncode == 75 and not (killed / "finished.json").exists()
    (tmp_path / "uploading").unlink()
    third = run_python(tmp_path, "-c", SLOW_UPLOAD, "0", "--resume", killed)
    assert third.returncode == 0, third.stderr
    assert (tmp_path / "uploading").exists() and (killed / "finished.json").exists()
