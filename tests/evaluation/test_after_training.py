"""Model, evaluation and video at the end of a run, and what is checked for them before it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.runs import REPO, run_python
from helpers.videos import read_video

from cleanba.config.errors import UsageError
from cleanba.evaluation.evaluate import evaluate
from cleanba.evaluation.model import load_model


def test_a_run_saves_evaluates_and_records_a_video(run):
    outcome, rows = run(save_model=True, capture_video=True)
    *updates, evaluation = rows
    assert [row["update"] for row in updates] == [1, 2, 3, 4, 5]
    assert evaluation["eval/episodic_return"] == outcome.evaluation.scores()["episodic_return"]
    assert evaluation["global_step"] == updates[-1]["global_step"] and "update" not in evaluation
    assert outcome.saved == outcome.run_dir / "cleanba_ppo.cleanrl_model"
    record = json.loads((outcome.run_dir / "evaluation.json").read_text())
    assert record["scores"]["episodic_return"] == evaluation["eval/episodic_return"]
    assert len(record["games"]) == 10
    assert evaluate(load_model(outcome.saved), episodes=10, seed=1) == outcome.evaluation
    frames = outcome.evaluation.episodes[0].length + 1  # that of the reset, too
    assert len(read_video(outcome.run_dir / "replay.mp4")[1]) == frames


def test_a_run_whose_evaluation_fails_keeps_its_model_and_reports_it(run, monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("the emulator caught fire")

    monkeypatch.setattr("cleanba.training.finish.evaluate", fail)
    outcome, rows = run(save_model=True)
    assert len(rows) == 5 and outcome.evaluation is None
    assert load_model(outcome.saved).steps == 320
    messages = capsys.readouterr().err
    assert "RuntimeError: the emulator caught fire" in messages
    assert f"the evaluation failed; the model is kept in {outcome.saved}" in messages


def test_any_experiment_name_gives_valid_files(run, tmp_path):
    outcome, _ = run(exp_name="../my exp/1 [x]", save_model=True, total_timesteps=64)
    assert outcome.run_dir.parent == tmp_path
    assert outcome.saved.parent == outcome.run_dir and load_model(outcome.saved).steps == 64


LONG_VIDEO = """
import sys
from cleanba import cleanba_ppo
from cleanba.evaluation.video import Video

add = Video.add

def add_many(self, image):
    open("recording", "w").close()
    for _ in range(100_000):
        add(self, image)

Video.add = add_many
cleanba_ppo.main(argv=sys.argv[1:])
"""


def test_ctrl_c_during_the_video_is_not_a_failed_evaluation(tmp_path):
    """The terminal sends it to the whole process group, including the encoder."""
    small = "--env-id CartPole-v1 --local-num-envs 4 --num-steps 16 --total-timesteps 128"
    command = subprocess.Popen(
        [sys.executable, "-c", LONG_VIDEO, *small.split(), "--save-model", "--capture-video"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPO), "JAX_NUM_CPU_DEVICES": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.time() + 60
    while not (tmp_path / "recording").exists():
        assert time.time() < deadline and command.poll() is None
        time.sleep(0.05)
    os.killpg(command.pid, signal.SIGINT)
    _, errors = command.communicate(timeout=60)  # the video would take longer
    assert command.returncode == 75
    assert "stopped by SIGINT after update 1 of 1" in errors and "failed" not in errors
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert load_model(run_dir / "cleanba_ppo.cleanrl_model").steps == 128
    assert not (run_dir / "replay.mp4").exists()


def test_an_environment_that_cannot_be_recorded_is_refused_before_the_training(run, tmp_path):
    with pytest.raises(UsageError, match="Catch-v0 cannot be recorded"):
        run(env_id="Catch-v0", capture_video=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flag", "module_name", "extra"),
    [
        ("capture_video", "imageio_ffmpeg", "video"),
        ("track", "wandb", "track"),
        ("upload_model", "huggingface_hub", "hub"),
    ],
)
def test_a_missing_extra_is_named_before_the_training(run, tmp_path, monkeypatch, flag, module_name, extra):
    monkeypatch.setitem(sys.modules, module_name, None)
    message = f"--{flag.replace('_', '-')} needs {module_name}; .*\\[{extra}\\]'"
    with pytest.raises(UsageError, match=message):
        run(**{flag: True})
    assert not list(tmp_path.iterdir())


def test_extras_are_imported_only_when_needed():
    extras = {"wandb", "huggingface_hub", "imageio_ffmpeg", "matplotlib"}
    script = f"import sys, cleanba.cleanba_ppo; print(sorted({extras} & sys.modules.keys()))"
    done = run_python(REPO, "-c", script)
    assert done.stdout.strip() == "[]", done.stderr
