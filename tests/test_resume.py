"""What a resumed run is: the same run, on whatever layout, with new games."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import REPO, read_rows
from safetensors import safe_open
from test_distributed import free_address
from test_equivalence import check_lag, distance
from test_metrics import all_events, read_events
from test_tracking import offline, read_history, read_records

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.sebulba import checkpoint
from cleanba.sebulba.args import BatchPlan, UsageError, given_flags
from cleanba.sebulba.envs import RESUMED, Envs, EnvStep, env_seeds, env_spec
from cleanba.sebulba.metrics import InUse, JsonLines
from cleanba.sebulba.resume import choose_beginning
from cleanba.sebulba.topology import Topology
from cleanba.sebulba.train import saved_like

UPDATES = 10
EVERY_UPDATE = dict(checkpoint_minutes=1e-9, keep_checkpoints=100)
TEN_UPDATES = dict(total_timesteps=UPDATES * 64) | EVERY_UPDATE


def cut_back(run_dir, update):
    """A copy of a run as it was when it had a checkpoint of that update and was killed two rows later."""
    others = len(list(run_dir.parent.iterdir()))
    copy = run_dir.with_name(f"{run_dir.name.rsplit('__', 1)[0]}__{others}")
    shutil.copytree(run_dir, copy)
    for path in (copy / "checkpoints").iterdir():
        if int(path.stem.removeprefix("update-")) > update:
            path.unlink()
    rows = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(rows[: update + 2]) + rows[-1][:40])
    (copy / "finished.json").unlink(missing_ok=True)
    return copy


def about(run_dir, update):
    """What a checkpoint says of itself."""
    with safe_open(run_dir / f"checkpoints/update-{update}.safetensors", framework="numpy") as file:
        return json.loads(file.metadata()["about"])


def like(args):
    """What such a run saves."""
    env = env_spec(args)
    plan = BatchPlan.create(args, Topology(args.actor_device_ids, args.learner_device_ids))
    return saved_like(cleanba_ppo.make_algorithm(args, env, plan))


def digests(rows):
    return [(row["params_digest"], row["data_digest"]) for row in rows]


class Stateless(Envs):
    """Observations and rewards follow from the last action alone: there are no games that could be lost."""

    def reset(self):
        self.env, self.action = np.arange(self.batch, dtype=np.int32), np.zeros(self.batch, np.int32)

    def send(self, action, env):
        self.env, self.action = env, action

    def receive(self):
        obs = np.ones((self.batch, 4), np.float32)
        never = np.zeros(self.batch, np.bool_)
        reward = self.action.astype(np.float32)
        return EnvStep(self.env, obs, reward, never, never, reward, never)


# -------------------------------------------------------------------------------------- what is promised


@pytest.mark.parametrize("algorithm", [cleanba_ppo, cleanba_impala])
def test_learner_schedules_and_keys_go_on_exactly(run, monkeypatch, algorithm):
    """Where no game is lost, nothing tells a resumed run from one that was never stopped."""
    monkeypatch.setattr("cleanba.sebulba.train.Envs", Stateless)
    options = TEN_UPDATES | dict(algorithm=algorithm, concurrency=False)
    whole, rows = run(**options)
    stopped = cut_back(whole.run_dir, 4)
    resumed, resumed_rows = run(**options, resume=str(stopped))
    assert resumed.run_dir == stopped
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
    assert one_rows[4]["data_digest"] != rows[4]["data_digest"], "the games are new"
    check_lag(one_rows[:4], lag=int(concurrency))
    check_lag(one_rows[4:], lag=int(concurrency))


def test_games_and_time_go_on(run):
    whole, rows = run(**TEN_UPDATES)
    _, resumed = run(**TEN_UPDATES, resume=str(cut_back(whole.run_dir, 6)))
    for name in ("seconds", "stats/games", "global_step"):
        values = [row[name] for row in resumed]
        assert values == sorted(values), name
    assert resumed[5] == rows[5] and resumed[6]["stats/games"] >= rows[5]["stats/games"] > 0
    assert resumed[6]["charts/avg_episodic_return"] == pytest.approx(
        rows[5]["charts/avg_episodic_return"], rel=0.5
    ), "the mean is over the games before, too"


def test_each_resume_has_other_games_and_each_environment_its_own():
    seeds = [env_seeds(1, range(1000))] + [env_seeds((1, RESUMED, count), range(1000)) for count in (1, 2, 3)]
    assert len({seed for part in seeds for seed in part}) == 4000


def test_a_run_resumed_twice_counts_twice(run, monkeypatch):
    seeds = []

    def noting(env, env_seeds, threads, **how):
        seeds.append(env_seeds)
        return Envs(env, env_seeds, threads, **how)

    monkeypatch.setattr("cleanba.sebulba.train.Envs", noting)
    whole, _ = run(**TEN_UPDATES)
    once = cut_back(whole.run_dir, 3)
    run(**TEN_UPDATES, resume=str(once))
    twice = cut_back(once, 6)
    run(**TEN_UPDATES, resume=str(twice))
    assert [about(twice, update)["resumes"] for update in (3, 6, 9)] == [0, 1, 2]
    parts = json.loads((twice / "args.json").read_text())["parts"]
    assert [part["from_update"] for part in parts] == [0, 3, 6]
    assert seeds == [env_seeds(1, range(4)), *(env_seeds((1, RESUMED, count), range(4)) for count in (1, 2))]


def test_rows_are_on_the_disk_before_the_checkpoint_that_counts_on_them(run, monkeypatch):
    events = []
    sync, save = JsonLines.sync, checkpoint.save_checkpoint
    monkeypatch.setattr(JsonLines, "sync", lambda self: events.append("rows") or sync(self))
    monkeypatch.setattr(checkpoint, "save_checkpoint", lambda *args: events.append("saved") or save(*args))
    run(**TEN_UPDATES)
    assert events == ["rows", "saved"] * UPDATES


def test_a_checkpoint_of_one_layout_resumes_on_another(run, monkeypatch):
    """One learner, then four, then two actor devices with two others: the run is the same."""
    monkeypatch.setattr("cleanba.sebulba.train.Envs", Stateless)
    options = TEN_UPDATES | dict(local_num_envs=8, total_timesteps=UPDATES * 128, inference_batch=4)
    whole, _ = run(**options)
    four = cut_back(whole.run_dir, 4)
    run(**options | dict(learner_device_ids=(1, 2, 3, 4)), resume=str(four))
    two = cut_back(four, 7)
    layout = dict(actor_device_ids=(0, 1), learner_device_ids=(2, 3), local_num_envs=4)
    last, rows = run(**options | layout, resume=str(two))
    assert [row["update"] for row in rows] == list(range(1, UPDATES + 1))
    assert distance(last.model.params, whole.model.params) < 1e-4
    layouts = [part["layout"] for part in json.loads((two / "args.json").read_text())["parts"]]
    assert layouts == ["a0-l0-d1", "a0-l1,2,3,4-d1", "a0,1-l2,3-d1"]


def command(cwd, *argv, **env):
    return subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPO)} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_checkpoint_of_one_process_resumes_on_two(run, tmp_path):
    """The second process does not see the folder: it gets everything from process 0. The policy is far from
    its beginning, so that other params would take other actions."""
    options = TEN_UPDATES | dict(local_num_envs=8, total_timesteps=UPDATES * 128, inference_batch=4)
    options |= dict(learning_rate=0.05)
    whole, _ = run(**options)
    alone, together = (cut_back(whole.run_dir, 4) for _ in range(2))
    _, alone_rows = run(**options, resume=str(alone))
    (tmp_path / "elsewhere").mkdir()
    place = {"JAX_COORDINATOR_ADDRESS": free_address(), "JAX_NUM_PROCESSES": "2", "JAX_NUM_CPU_DEVICES": "1"}
    resume = ["-m", "cleanba.cleanba_ppo", "--distributed", "--resume", together.name]
    processes = [
        subprocess.Popen(
            [sys.executable, *resume],
            cwd=cwd,
            env=os.environ | place | {"JAX_PROCESS_ID": str(rank), "PYTHONPATH": str(REPO)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, cwd in enumerate([together.parent, tmp_path / "elsewhere"])
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "a0-l0-d2 on cpu  ·  resumed after update 4" in said[0]
    rows = read_rows(together)
    assert [row["update"] for row in rows] == list(range(1, UPDATES + 1))
    assert rows[4]["data_digest"] == alone_rows[4]["data_digest"]
    assert rows[4]["losses/value_loss"] == pytest.approx(alone_rows[4]["losses/value_loss"], rel=1e-3)
    assert json.loads((together / "args.json").read_text())["args"]["local_num_envs"] == 4
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_that_is_complete_is_only_finished(run):
    """As after a preemption in the evaluation: nothing is trained, the rest is done."""
    whole, rows = run(**TEN_UPDATES, save_model=True)
    again, again_rows = run(**TEN_UPDATES, save_model=True, resume=str(whole.run_dir))
    assert digests(again_rows[:-1]) == digests(rows[:-1]) and len(again_rows) == UPDATES + 1
    assert "eval/episodic_return" in again_rows[-1] and "eval/episodic_return" in rows[-1]
    assert distance(again.model.params, whole.model.params) == 0


def test_a_run_can_be_made_longer(run):
    whole, _ = run(**TEN_UPDATES, save_model=True)
    _, rows = run(**TEN_UPDATES | dict(total_timesteps=12 * 64), resume=str(whole.run_dir))
    assert [row["update"] for row in rows] == list(range(1, 13)), "the row of the evaluation is cut"


# ------------------------------------------------------------------------------------------ its arguments


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run with a checkpoint of update 4 of 10; tests copy it."""
    flags = "--env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 16 --hiddens 16"
    args = "--checkpoint-minutes 1e-9 --keep-checkpoints 100 --total-timesteps 640 --gradient-chunk 100"
    folder = tmp_path_factory.mktemp("stopped")
    cleanba_ppo.main(argv=[*flags.split(), *args.split(), "--runs-dir", str(folder / "first")])
    (run_dir,) = (folder / "first").iterdir()
    return cut_back(run_dir, 4)


@pytest.fixture
def copy(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / stopped.name)


def resume(folder, flags="", algorithm=cleanba_ppo):
    """The beginning that a command line with these flags has."""
    names, values = flags.split()[::2], [json.loads(value) for value in flags.split()[1::2]]
    names = [name[2:].replace("-", "_") for name in names]
    typed = {n: tuple(v) if isinstance(v, list) else v for n, v in zip(names, values, strict=True)}
    args = algorithm.Args(resume=str(folder), **typed)
    beginning = choose_beginning(args, given_flags(flags.split()), 1, like)
    beginning.earlier.metrics.close()
    return beginning


def test_arguments_come_from_the_run(copy):
    args = resume(copy, "--learner-device-ids [1,2] --total-timesteps 1000 --log-frequency 7").args
    assert (args.env_id, args.num_steps, args.hiddens, args.gradient_chunk) == ("CartPole-v1", 16, (16,), 100)
    assert (args.learner_device_ids, args.total_timesteps, args.log_frequency) == ((1, 2), 1000, 7)
    assert args.runs_dir == str(copy.parent)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--gamma 0.9", "--gamma cannot change in a resumed run, which has 0.99; leave it out"),
        ("--seed 2", "--seed cannot change"),
        ("--concurrency true", "--concurrency cannot change"),
        ("--num-steps 32", "--num-steps cannot change"),
        ("--hiddens [8]", r"--hiddens cannot change in a resumed run, which has \(16,\)"),
        ("--update-epochs 2", "--update-epochs cannot change"),
        ("--total-timesteps 128", "--total-timesteps 128 is less than the 256 of"),
        ("--local-num-envs 8", "the run has 4 environments, 1 actor threads with --local-num-envs 8 have 8"),
        ("--num-actor-threads 3", "the run has 4 environments, which 3 actor threads cannot share"),
        ("--actor-device-ids []", "the run has 4 environments, which 0 actor threads cannot share"),
        ("--num-actor-threads 2 --local-num-envs 4", "2 actor threads with --local-num-envs 4 have 8"),
    ],
)
def test_what_cannot_change_is_refused_by_name(copy, flags, message):
    with pytest.raises(UsageError, match=message):
        resume(copy, flags)


@pytest.mark.parametrize("flags", ["--gamma 0.99", "--hiddens [16]", "--local-num-envs 4"])
def test_what_is_the_same_may_be_given(copy, flags):
    assert resume(copy, flags).update == 4


def test_environments_are_shared_out_anew(copy):
    assert resume(copy, "--num-actor-threads 2").args.local_num_envs == 2
    assert resume(copy, "--actor-device-ids [0,1] --local-num-envs 2").args.local_num_envs == 2


def test_one_of_the_two_chunk_flags_replaces_the_other(copy):
    record = json.loads((copy / "args.json").read_text())
    record["args"]["gradient_accumulation_steps"] = 4
    (copy / "args.json").write_text(json.dumps(record))
    assert resume(copy, "--gradient-chunk 8").args.gradient_accumulation_steps is None


def test_determinism_is_that_of_the_new_command(copy):
    """XLA's flags are set before the run's own arguments are read."""
    record = json.loads((copy / "args.json").read_text())
    record["args"]["deterministic"] = False
    (copy / "args.json").write_text(json.dumps(record))
    assert resume(copy, "").args.deterministic


def test_a_run_of_another_algorithm_is_refused(copy):
    with pytest.raises(UsageError, match="is a run of another algorithm, by its arguments .*--clip-coef"):
        resume(copy, algorithm=cleanba_impala)
    record = json.loads((copy / "args.json").read_text())
    shared = {field.name for field in dataclasses.fields(cleanba_impala.Args)}
    record["args"] = {name: value for name, value in record["args"].items() if name in shared}
    (copy / "args.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="is a run of another algorithm, by its arguments .*--clip-coef"):
        resume(copy)


def test_a_flag_that_is_newer_than_the_run_has_its_default(copy):
    record = json.loads((copy / "args.json").read_text())
    del record["args"]["env_threads"]
    (copy / "args.json").write_text(json.dumps(record))
    assert resume(copy).args.env_threads is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run_dir: (run_dir / "args.json").unlink(), "is not a run's folder: args.json: No such file"),
        (lambda run_dir: (run_dir / "args.json").write_text("{"), "has a damaged args.json"),
        (lambda run_dir: (run_dir / "args.json").write_text("[]"), "has a damaged args.json"),
        (lambda run_dir: shutil.rmtree(run_dir / "checkpoints"), "has no checkpoint to go on from"),
    ],
)
def test_a_folder_that_is_no_run_is_refused(copy, damage, message):
    damage(copy)
    with pytest.raises(UsageError, match=message):
        resume(copy)


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(copy, run, capsys):
    newest = copy / "checkpoints/update-4.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    cleanba_ppo.main(argv=["--resume", str(copy)])
    said = capsys.readouterr()
    assert "update-4.safetensors is damaged" in said.err and "resumed after update 3" in said.out
    assert [row["update"] for row in read_rows(copy)] == list(range(1, UPDATES + 1))


def test_a_second_process_is_refused_while_the_first_one_has_the_run(copy):
    first = JsonLines(copy)
    with pytest.raises(InUse, match="is in use: another process is training there"):
        resume(copy)
    first.close()
    resume(copy)


# --------------------------------------------------------------------------------------------------- auto


def auto(stopped, **changes):
    args = json.loads((stopped / "args.json").read_text())["args"] | changes
    args = {name: tuple(value) if isinstance(value, list) else value for name, value in args.items()}
    args |= dict(resume="auto", runs_dir=str(stopped.parent))
    beginning = choose_beginning(cleanba_ppo.Args(**args), set(), 1, like)
    if beginning.earlier:
        beginning.earlier.metrics.close()
    return beginning


def test_auto_takes_the_newest_unfinished_run_with_the_same_arguments(copy):
    name, time = copy.name.rsplit("__", 1)
    newer, finished, later_but_empty, other = (
        copy.parent / f"{name}__{int(time) + delay}" for delay in (1, 2, 3, 4)
    )
    for folder in (newer, finished, other):
        shutil.copytree(copy, folder)
    (finished / "finished.json").touch()
    later_but_empty.mkdir()
    (copy.parent / f"{name}__{int(time) + 5}").mkdir()
    (copy.parent / f"{name}__{int(time) + 5}/args.json").write_text("{")
    record = json.loads((other / "args.json").read_text())
    record["args"]["gamma"] = 0.5
    (other / "args.json").write_text(json.dumps(record))
    (copy.parent / f"{name}__x").mkdir()
    assert auto(copy).earlier.run_dir == newer
    assert auto(copy, learner_device_ids=(1, 2), log_frequency=3, track=True).earlier.run_dir == newer


def test_auto_goes_on_and_on_after_the_layout_has_changed(copy):
    """The flag is for each thread: with two of them the same command asks for twice the environments."""
    for _ in range(2):
        beginning = auto(copy, num_actor_threads=2, local_num_envs=4)
        assert beginning.earlier.run_dir == copy and beginning.args.local_num_envs == 2
        record = json.loads((copy / "args.json").read_text())
        record["args"] |= dict(num_actor_threads=2, local_num_envs=2)  # as the resumed run has it
        (copy / "args.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="the run has 4 environments, which 3 actor threads cannot share"):
        auto(copy, num_actor_threads=3, local_num_envs=4)


def test_auto_tells_experiments_with_other_numbers_of_environments_apart(copy):
    assert auto(copy, local_num_envs=8).earlier is None
    assert auto(copy, num_actor_threads=2, local_num_envs=2).earlier.run_dir == copy


def test_auto_does_not_pass_over_a_run_that_it_cannot_read(copy, monkeypatch):
    def stale(*_, **__):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("cleanba.sebulba.checkpoint.safe_open", stale)
    with pytest.raises(UsageError, match="Stale file handle"):
        auto(copy)


@pytest.mark.parametrize("change", [dict(seed=2), dict(gamma=0.9), dict(total_timesteps=1280)], ids=str)
def test_auto_starts_afresh_with_other_arguments(copy, change):
    beginning = auto(copy, **change)
    assert beginning.earlier is None and beginning.update == 0


def test_auto_leaves_a_run_alone_that_is_under_way(copy, capsys):
    metrics = JsonLines(copy)
    assert auto(copy).earlier is None
    assert "is in use: another process is training there" in capsys.readouterr().err
    metrics.close()


def test_auto_starts_afresh_where_nothing_was_saved_yet(copy, capsys):
    shutil.rmtree(copy / "checkpoints")
    assert auto(copy).earlier is None
    assert "not resumed: " in capsys.readouterr().err
    nowhere = cleanba_ppo.Args(resume="auto", runs_dir=str(copy / "nowhere"))
    assert choose_beginning(nowhere, set(), 1, like).earlier is None


def test_a_finished_command_is_not_taken_up_again(copy):
    cleanba_ppo.main(argv=["--resume", str(copy)])
    assert (copy / "finished.json").exists()
    assert auto(copy).earlier is None


# --------------------------------------------------------------------------------------- what was logged


def test_rows_after_the_checkpoint_are_cut(tmp_path):
    rows = [{"update": u, "global_step": 10 * u} for u in range(1, 6)] + [{"global_step": 50, "eval/x": 1}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for torn in ("", '{"update": 7, "gl', "\0\0\0\n"):
        (tmp_path / "metrics.jsonl").write_text(text + torn)
        metrics = JsonLines(tmp_path)
        assert metrics.cut_after(3) == 50
        metrics.write({"update": 4})
        metrics.close()
        assert [row["update"] for row in read_rows(tmp_path)] == [1, 2, 3, 4]


def test_missing_rows_are_said_and_later_ones_stay(tmp_path, capsys):
    lines = [json.dumps({"update": u, "global_step": 10 * u}) + "\n" for u in range(1, 7)]
    lines[1] = "damaged\n"
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    metrics = JsonLines(tmp_path)
    metrics.cut_after(4)
    metrics.close()
    assert "lacks the rows of 1 updates" in capsys.readouterr().err
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:4])


def test_tensorboard_forgets_what_was_after_the_checkpoint(copy):
    earlier = {path.name for path in copy.glob("events*")}
    cleanba_ppo.main(argv=["--resume", str(copy), "--log-frequency", "3"])
    (path,) = (path for path in copy.glob("events*") if path.name not in earlier)
    for name in earlier:
        (copy / name).unlink()

    sessions = [event.step for event in all_events(path) if event.HasField("session_log")]
    assert sessions == [4 * 64 + 1]
    assert [step for tag, step, _ in read_events(copy) if tag == "losses/loss"] == [6 * 64, 9 * 64, 10 * 64]


def test_the_tracked_run_goes_on_and_repeats_nothing(tmp_path):
    """Rows up to update 6 were sent, the checkpoint is of update 4."""
    small = "--env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 16 --log-frequency 1"
    flags = "--total-timesteps 640 --checkpoint-minutes 1e-9 --keep-checkpoints 100 --track"
    ppo, env = ["-m", "cleanba.cleanba_ppo"], offline(tmp_path)
    first = command(tmp_path, *ppo, *small.split(), *flags.split(), **env)
    assert first.returncode == 0, first.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    shutil.move(run_dir / "wandb", tmp_path / "earlier")
    again = cut_back(run_dir, 4)
    resumed = command(tmp_path, *ppo, "--resume", again, **env)
    assert resumed.returncode == 0, resumed.stderr
    steps = [[row["_step"] for row in read_history(folder)] for folder in (tmp_path / "earlier", again)]
    assert steps == [[64 * u for u in range(1, 11)], [64 * u for u in range(7, 11)]]
    ids = [
        next(r.run.run_id for r in read_records(folder) if r.WhichOneof("record_type") == "run")
        for folder in (tmp_path / "earlier", again)
    ]
    assert ids[0] == ids[1]


@pytest.mark.slow
def test_tracking_that_begins_late_has_everything_and_is_remembered(tmp_path):
    """Three parts: without tracking, with it, without. The second has the rows of the first, too."""
    small = "--env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 16 --log-frequency 1"
    flags = "--total-timesteps 320 --checkpoint-minutes 1e-9 --keep-checkpoints 100"
    ppo, env = ["-m", "cleanba.cleanba_ppo"], offline(tmp_path) | {"WANDB_RUN_ID": "my.run"}
    command(tmp_path, *ppo, *small.split(), *flags.split(), **env)
    (run_dir,) = (tmp_path / "runs").iterdir()
    longer = ["--resume", run_dir, "--total-timesteps"]
    tracked = command(tmp_path, *ppo, *longer, 640, "--track", **env)
    assert tracked.returncode == 0, tracked.stderr
    assert [row["_step"] for row in read_history(run_dir)] == [64 * u for u in range(1, 11)]
    silent = command(tmp_path, *ppo, *longer, 704, "--no-track", **env)
    assert silent.returncode == 0, silent.stderr
    assert about(run_dir, 11)["tracker"] == "my.run"


UPLOAD = """
import sys, time
from cleanba import cleanba_ppo
from cleanba.sebulba import finish, train

finish.check_upload = lambda args: None
train.share = lambda outcome, console: (open("sharing", "w").close(), time.sleep(float(sys.argv[1])))
cleanba_ppo.main(argv=sys.argv[2:])
"""


@pytest.mark.slow
def test_a_run_is_held_until_the_last_thing_is_done_and_what_was_asked_for_is_remembered(copy, tmp_path):
    """It is resumed with --upload-model, stopped in the upload, and resumed without any flag."""
    resume = ["--resume", copy]
    first = subprocess.Popen(
        [sys.executable, "-c", UPLOAD, "60", *map(str, resume), "--upload-model"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "sharing").exists():
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    second = command(tmp_path, "-c", UPLOAD, "0", *resume)
    assert second.returncode == 2 and "is in use" in second.stderr
    first.terminate()
    assert "stopped by SIGTERM after update 10 of 10" in first.communicate(timeout=30)[1]
    assert first.returncode == 75 and not (copy / "finished.json").exists()
    (tmp_path / "sharing").unlink()
    third = command(tmp_path, "-c", UPLOAD, "0", *resume)
    assert third.returncode == 0, third.stderr
    assert (tmp_path / "sharing").exists() and (copy / "finished.json").exists()


SECRETS = {
    "WANDB_API_KEY": "k" * 36 + "wxyz",
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "AWS_SECRET_ACCESS_KEY": "s3cr3t-s3cr3t",
    "HTTPS_PROXY": "http://somebody:pa55word@127.0.0.1:9",
}
LEAKING = """
import os, sys
from cleanba import cleanba_ppo
from cleanba.sebulba.envs import Envs

receive, calls = Envs.receive, 0

def leak(self):
    global calls
    calls += 1
    if calls > LAST_CALL:
        raise RuntimeError(" ".join(os.environ[name] for name in NAMES))
    return receive(self)

Envs.receive = leak
cleanba_ppo.main(argv=sys.argv[1:])
""".replace("NAMES", str(list(SECRETS)))


@pytest.mark.parametrize("calls", [40, 80], ids=["training", "evaluation"])
def test_secrets_reach_neither_the_run_folder_nor_what_is_said(tmp_path, calls):
    """Even where an exception has them in its message."""
    small = "--env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 16"
    small += " --total-timesteps 320 --checkpoint-minutes 1e-9"
    flags = [*small.split(), "--track", "--save-model"]
    script = LEAKING.replace("LAST_CALL", str(calls))
    failed = command(tmp_path, "-c", script, *flags, **offline(tmp_path) | SECRETS)
    assert "(the value of HF_TOKEN)" in failed.stderr, failed.stderr
    said = failed.stdout + failed.stderr
    left = {path: path.read_bytes() for path in tmp_path.glob("runs/**/*") if path.is_file()}
    assert {".safetensors", ".wandb", ".cleanrl_model"} <= {path.suffix for path in left}
    for secret in ("k" * 36, *SECRETS.values(), "pa55word"):
        assert secret not in said
        assert not [path for path, data in left.items() if secret.encode() in data], secret
