"""Weights & Biases, offline: what its file has, and what happens when the service does not answer."""

import json
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import wandb
from helpers.runs import REPO, read_args, read_rows, run_python
from helpers.wandb_files import UNREACHABLE, logged_steps, offline, read_history, read_run

from cleanba.records.wandb_logger import WeightsAndBiases


def train(tmp_path, script, *flags, **env):
    return run_python(tmp_path, REPO / "cleanba" / script, *flags, base=offline(tmp_path), timeout=200, **env)


@pytest.mark.slow
@pytest.mark.parametrize("learners", ["0", "0 1", "1 2", "1 2 3", "1 2 3 4", "1 2 3 4 5 6"])
def test_the_layouts_of_the_60_environment_preset(tmp_path, learners):
    flags = f"--actor-device-ids 0 --learner-device-ids {learners} --track"
    small = "--num-steps 4 --total-timesteps 480 --channels 4 --hiddens 16 --update-epochs 1"
    script = "cleanba_ppo_envpool_impala_atari_wrapper.py"
    done = train(tmp_path, script, *flags.split(), *small.split(), JAX_NUM_CPU_DEVICES="8")
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    rows = read_rows(run_dir)
    assert [row["global_step"] for row in rows] == [240, 480]
    (logged,) = read_history(run_dir)
    assert logged["_step"] == 480 and logged["losses/loss"] == rows[-1]["losses/loss"]
    started = read_run(run_dir)
    assert (started.project, started.display_name) == ("cleanRL", run_dir.name)
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    record = read_args(run_dir)
    assert config["layout"] == record["layout"] == f"a0-l{learners.replace(' ', ',')}-d1"
    assert config["local_num_envs"] == 60 and config["learning_rate"] == 2.5e-4
    assert config["machine"]["learner_devices"] == "cpu"
    assert config["code"] == record["code"] and config["code"]["version"]
    assert f"tracking offline: `wandb sync runs/{run_dir.name}/wandb/offline-run-" in done.stdout


def test_the_evaluation_is_tracked(tmp_path):
    small = "--env-id CartPole-v1 --local-num-envs 4 --num-steps 16 --total-timesteps 640 --log-frequency 2"
    flags = "--track --wandb-project-name mine --wandb-entity team --save-model"
    done = train(tmp_path, "cleanba_ppo.py", *small.split(), *flags.split())
    assert done.returncode == 0, done.stderr
    history = list(read_history(tmp_path))
    assert [row["_step"] for row in history] == [256, 512, 640, 641]
    (evaluation,) = tmp_path.glob("runs/*/evaluation.json")
    scores = json.loads(evaluation.read_text())["scores"]
    assert history[-1]["eval/episodic_return"] == scores["episodic_return"]
    started = read_run(tmp_path)
    assert (started.project, started.entity) == ("mine", "team")


@pytest.mark.parametrize(("key", "message"), [({}, "wandb login"), ({"WANDB_API_KEY": "short"}, "invalid")])
def test_without_an_api_key_nothing_is_trained(tmp_path, key, message):
    done = train(tmp_path, "cleanba_ppo.py", "--env-id", "CartPole-v1", "--track", WANDB_MODE="online", **key)
    assert done.returncode == 2
    assert "--track" in done.stderr and message in done.stderr and "WANDB_MODE=offline" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_keeps_every_tracked_row(tmp_path):
    small = "--env-id CartPole-v1 --local-num-envs 4 --num-steps 16 --log-frequency 1 --track"
    command = subprocess.Popen(
        [sys.executable, REPO / "cleanba/cleanba_ppo.py", *small.split()],
        cwd=tmp_path,
        env=offline(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.time() + 100
    while not any(p.read_text().count("\n") >= 20 for p in tmp_path.glob("runs/*/metrics.jsonl")):
        assert time.time() < deadline and command.poll() is None
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=30) == 75
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert logged_steps(tmp_path) == [row["global_step"] for row in read_rows(run_dir)]


@pytest.fixture
def tracker(tmp_path, monkeypatch):
    def start(**env):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        wandb.teardown()  # it reads the environment once per process
        return WeightsAndBiases(tmp_path, 1, 9, project="p", entity=None, config={"seed": 1})

    yield start
    wandb.teardown()


def test_two_runs_in_one_process_are_two(tmp_path, tracker):
    first, second = tracker(WANDB_MODE="offline"), tracker(WANDB_MODE="offline")
    assert first.where != second.where
    second.close()


def test_an_unreachable_service_is_reported_once_and_rows_are_kept(tmp_path, tracker, monkeypatch, capsys):
    monkeypatch.setattr(WeightsAndBiases, "START_SECONDS", 1)
    unreachable = tracker(WANDB_MODE="online", WANDB_BASE_URL=UNREACHABLE, WANDB_API_KEY="a" * 40)
    unreachable.write({})  # what a damaged line of an earlier part is read as
    for update in range(1, 4):
        unreachable.write({"update": update, "global_step": update, "losses/loss": 0.5})
    unreachable.close()
    messages = capsys.readouterr().err
    assert messages.count("Weights & Biases cannot be reached") == 1 and "the run continues" in messages
    assert logged_steps(next(tmp_path.glob("wandb/offline-run-*"))) == [1, 2, 3]


IMPATIENT = """
import sys
from cleanba import cleanba_ppo
from cleanba.records.wandb_logger import WeightsAndBiases

WeightsAndBiases.START_SECONDS = 1
cleanba_ppo.main(argv=sys.argv[1:])
"""


@pytest.mark.slow
def test_a_run_continues_without_the_service(tmp_path):
    small = "--env-id CartPole-v1 --local-num-envs 4 --num-steps 16 --total-timesteps 256 --track"
    online = {"WANDB_MODE": "online", "WANDB_API_KEY": "a" * 40}
    done = run_python(tmp_path, "-c", IMPATIENT, *small.split(), base=offline(tmp_path), **online)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the run continues and keeps everything locally") == 1
    assert "tracking offline: `wandb sync " in done.stdout and "done: 256 steps" in done.stdout
    (offline_run,) = tmp_path.glob("runs/*/wandb/offline-run-*")
    assert logged_steps(offline_run) == [256]


def test_a_resumed_run_sends_what_the_service_has_not_received(tmp_path, monkeypatch):
    """A killed run may have logged rows that never arrived: they are sent again, and nothing else is."""
    run = SimpleNamespace(offline=False, disabled=False, id="ab12", starting_step=257)
    init_options, sent = [], []
    monkeypatch.setattr("wandb.init", lambda **options: init_options.append(options) or run)
    monkeypatch.setattr("wandb.log", lambda row, step, commit: sent.append(step))
    monkeypatch.setattr("wandb.finish", lambda exit_code: None)
    resumed = dict(project="p", entity=None, config={}, run_id="ab12", logged_until=512)
    tracker = WeightsAndBiases(tmp_path, 1, 9, **resumed)
    for update in range(3, 7):
        tracker.write({"update": update, "global_step": update * 64, "losses/loss": 0.5})
    tracker.close()
    assert (init_options[0]["id"], init_options[0]["resume"]) == ("ab12", "allow")
    assert sent == [320, 384] and tracker.run_id == "ab12"


def test_a_service_that_fails_during_the_run_is_reported_once(tracker, monkeypatch, capsys):
    failing = tracker(WANDB_MODE="offline")

    def fail(*_, **__):
        raise BrokenPipeError("the service is gone")

    monkeypatch.setattr("wandb.log", fail)
    for update in range(1, 4):
        failing.write({"update": update, "global_step": update, "losses/loss": 0.5})
    failing.close()
    assert capsys.readouterr().err.count("Weights & Biases failed (the service is gone)") == 1
