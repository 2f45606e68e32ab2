import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import envpool
import imageio_ffmpeg
import jax
import numpy as np
import pytest
from conftest import REPO
from test_model import make_model

from cleanba.sebulba import evaluate as module
from cleanba.sebulba.args import UsageError
from cleanba.sebulba.envs import Envs, EnvStep, Episode
from cleanba.sebulba.evaluate import Evaluation, evaluate, film_of
from cleanba.sebulba.model import load_model, save_model
from cleanba.sebulba.video import Film
from cleanrl_utils.atari_scores import ATARI_SCORES, human_normalized


class ScriptedEnvs:
    """Environments whose games have given lengths; every step gives 1, and a reset takes one row."""

    lengths = ([9], [2, 3, 1, 1, 1, 1, 1])

    def __init__(self, env, seeds, threads, rendered):
        self.left = [list(lengths) for lengths in self.lengths]
        self.resetting = [False] * len(seeds)
        self.began = False

    def reset(self):
        pass

    def send(self, action, env):
        self.began = True

    def receive(self):
        over = np.zeros(2, np.bool_)
        for e, games in enumerate(self.left if self.began else ()):
            if self.resetting[e]:
                self.resetting[e] = False
            elif games:
                games[0] -= 1
                if games[0] == 0:
                    over[e] = self.resetting[e] = True
                    games.pop(0)
        obs = np.zeros((2, 4), np.float32)
        return EnvStep(np.arange(2), obs, np.ones(2), over, over & False, np.ones(2), over)


def test_the_first_games_that_begin_count_not_the_first_that_end(monkeypatch):
    """The first to end are the second environment's, with lengths 2, 3 and 1."""
    monkeypatch.setattr(module, "Envs", ScriptedEnvs)
    monkeypatch.setattr(module, "MOST_AT_ONCE", 2)
    result = evaluate(make_model(), episodes=3, seed=1)
    assert result.games == [Episode(9.0, 9), Episode(2.0, 2), Episode(3.0, 3)]


def test_an_evaluation_is_the_same_again_and_another_with_another_seed():
    model = make_model()
    first, again, other = (evaluate(model, episodes=5, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.games != other.games


def test_the_device_does_not_matter():
    model = make_model()
    first, last = (
        evaluate(model, episodes=5, seed=1, device=d) for d in (jax.devices()[0], jax.devices()[7])
    )
    assert first == last


def test_a_game_goes_on_through_lost_lives_under_the_training_preset(monkeypatch):
    """Breakout has five lives; under the impala preset each loss terminates an episode."""
    lives, receive = [0, 0], Envs.receive

    def watched(self):
        taken = receive(self)
        for e in range(2):
            lives[e] += bool(taken.terminated[e]) and lives[e] < 5
        return taken

    monkeypatch.setattr(Envs, "receive", watched)
    model = make_model(env_id="Breakout-v5", atari_preset="impala", network="nature")
    result = evaluate(model, episodes=2, seed=1)
    assert lives == [5, 5]
    assert all(game.length > 100 for game in result.games)  # five serves


def test_scores_by_hand():
    games = [Episode(r, length) for r, length in [(1.7, 10), (30.5, 20), (59.3, 30)]]
    scores = Evaluation("Breakout-v5", 1, games).scores()
    assert scores["episodic_return"] == pytest.approx(30.5)
    assert scores["episodic_return_std"] == pytest.approx(28.8 * (2 / 3) ** 0.5)
    assert (scores["episodic_return_min"], scores["episodic_return_max"]) == (1.7, 59.3)
    assert scores["episodic_length"] == 20
    assert scores["human_normalized_score"] == pytest.approx(1.0)  # 30.5 is the human's
    assert "human_normalized_score" not in Evaluation("CartPole-v1", 1, games).scores()
    assert "return 30.50 ± 23.52 (from 1.7 to 59.3), length 20" in str(Evaluation("Breakout-v5", 1, games))


def test_there_are_human_scores_of_57_games():
    assert len(ATARI_SCORES) == 57
    assert {f"{game}-v5" for game in ATARI_SCORES} <= set(envpool.list_all_envs())
    assert all(scores.random < scores.human for scores in ATARI_SCORES.values())
    assert human_normalized("Pong-v5", -20.7) == 0
    assert human_normalized("CartPole-v1", 500) is None


def read_video(path):
    """Frames per second, and u8 [frames, height, width, 3]."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(command, capture_output=True, check=True)
    width, height, fps = re.search(r" (\d{3,})x(\d{3,}).* (\d+) fps", decoded.stderr.decode()).groups()
    return int(fps), np.frombuffer(decoded.stdout, np.uint8).reshape(-1, int(height), int(width), 3)


def test_a_video_shows_the_game_in_its_own_colours(tmp_path):
    model = make_model(env_id="Breakout-v5", atari_preset="impala", network="nature")
    with film_of(model, tmp_path / "a.mp4") as film:
        result = evaluate(model, episodes=2, seed=1, film=film)
    fps, frames = read_video(tmp_path / "a.mp4")
    assert fps == 15  # a step is four of sixty frames a second
    length = result.games[0].length + 4  # and the resets after four lost lives
    assert frames.shape == (length, 630, 480, 3)  # 210 x 160, three times as large
    red_bricks = frames[0][175, 240].astype(int)
    assert red_bricks[0] > red_bricks[1] + 80 and red_bricks[0] > red_bricks[2] + 80


def test_an_environment_without_a_picture_says_so(tmp_path):
    model = make_model(env_id="Catch-v0")
    with pytest.raises(UsageError, match="Catch-v0 cannot be filmed"), film_of(model, tmp_path / "a") as film:
        evaluate(model, episodes=1, seed=1, film=film)


def test_a_video_that_fails_is_told_and_costs_no_evaluation(tmp_path):
    model = make_model()
    with film_of(model, tmp_path / "nowhere" / "a.mp4") as film:
        result = evaluate(model, episodes=3, seed=1, film=film)
    assert result == evaluate(model, episodes=3, seed=1)
    assert "No such file or directory" in film.problem


def test_half_a_video_is_not_kept_and_replaces_none(tmp_path):
    (tmp_path / "a.mp4").write_text("an earlier film")
    with pytest.raises(KeyboardInterrupt), Film(tmp_path / "a.mp4", fps=30) as film:
        for _ in range(100):
            film.add(np.zeros((64, 64, 3), np.uint8))
        raise KeyboardInterrupt
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an earlier film"]


def test_an_encoder_that_cannot_start_is_tried_once(tmp_path, monkeypatch):
    tries = []

    def start(self, *size):
        tries.append(size)
        raise OSError("not executable")

    monkeypatch.setattr(Film, "_start_encoder", start)
    with Film(tmp_path / "a.mp4", fps=30) as film:
        for _ in range(3):
            film.add(np.zeros((64, 64, 3), np.uint8))
    assert film.problem == "not executable" and tries == [(448, 448)]


@pytest.mark.timeout(30)
def test_wherever_a_picture_is_interrupted_the_film_ends(tmp_path):
    """As by Ctrl-C, whose exception comes between any two lines, those of the standard library included."""
    picture, lines, complete = np.zeros((64, 64, 3), np.uint8), 0, False

    def interrupt(frame, event, _):
        nonlocal left
        left -= event == "line"
        if not left:
            raise KeyboardInterrupt
        return interrupt

    while not complete:
        left = lines = lines + 1
        with suppress(KeyboardInterrupt), Film(tmp_path / "a.mp4", fps=30) as film:
            film.add(picture)
            sys.settrace(interrupt)
            try:
                film.add(picture)
            finally:
                sys.settrace(None)
            complete = True
    assert lines > 5 and (tmp_path / "a.mp4").exists()


# ---------------------------------------------------------------------------------------------- the command


def cleanba_eval(cwd, *argv, **env):
    return subprocess.run(
        [sys.executable, "-c", "from cleanba.cli import main; main()", "eval", *map(str, argv)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPO), "JAX_NUM_CPU_DEVICES": "1"} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_plays_and_reports(tmp_path):
    save_model(tmp_path / "a.cleanrl_model", make_model())
    shown = cleanba_eval(tmp_path, "a.cleanrl_model", "--episodes", 3, "--seed", 5, "--video")
    assert shown.returncode == 0, shown.stderr
    title, result, video = shown.stdout.splitlines()
    assert title == "CartPole-v1  ·  cleanba_ppo, seed 1, 640 steps  ·  on cpu"
    assert result == str(evaluate(make_model(), episodes=3, seed=5))
    assert len(read_video(tmp_path / video.removeprefix("video: "))[1]) > 8
    assert shown.stderr == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nothing.cleanrl_model"], "nothing.cleanrl_model does not exist"),
        ([".", "--episodes", 0], "--episodes 0 is too small"),
        ([".", "--seed", -1], "--seed -1 is out of range"),
        (["."], "holds no .cleanrl_model file"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, argv, message):
    shown = cleanba_eval(tmp_path, *argv)
    assert shown.returncode == 2
    assert message in shown.stderr and shown.stderr.count("\n") == 1


# ------------------------------------------------------------------------------------ at the end of training


def test_a_run_saves_evaluates_and_films(run):
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
    assert len(read_video(outcome.run_dir / "replay.mp4")[1]) == outcome.evaluation.games[0].length


def test_a_run_that_fails_to_evaluate_keeps_its_model_and_says_so(run, monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("the emulator caught fire")

    monkeypatch.setattr("cleanba.sebulba.finish.evaluate", fail)
    outcome, rows = run(save_model=True)
    assert len(rows) == 5 and outcome.evaluation is None
    assert load_model(outcome.saved).steps == 320
    said = capsys.readouterr().err
    assert "RuntimeError: the emulator caught fire" in said
    assert f"the evaluation failed; the model is kept in {outcome.saved}" in said


def test_any_name_of_the_experiment_gives_files(run, tmp_path):
    outcome, _ = run(exp_name="../my exp/1 [x]", save_model=True, total_timesteps=64)
    assert outcome.run_dir.parent == tmp_path
    assert outcome.saved.parent == outcome.run_dir and load_model(outcome.saved).steps == 64


PLAYING = """
import sys
from cleanba import cleanba_ppo
from cleanba.sebulba.video import Film

add = Film.add

def slowly(self, picture):
    open("filming", "w").close()
    for _ in range(100_000):
        add(self, picture)

Film.add = slowly
cleanba_ppo.main(argv=sys.argv[1:])
"""


def test_ctrl_c_while_a_game_is_filmed_is_not_a_failed_evaluation(tmp_path):
    """The terminal sends it to the whole group, the encoder included."""
    small = "--env-id CartPole-v1 --local-num-envs 4 --num-steps 16 --total-timesteps 128"
    command = subprocess.Popen(
        [sys.executable, "-c", PLAYING, *small.split(), "--save-model", "--capture-video"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPO), "JAX_NUM_CPU_DEVICES": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.time() + 60
    while not (tmp_path / "filming").exists():
        assert time.time() < deadline and command.poll() is None
        time.sleep(0.05)
    os.killpg(command.pid, signal.SIGINT)
    pressed = time.time()
    _, errors = command.communicate(timeout=30)
    assert command.returncode == 75 and time.time() - pressed < 2
    assert "stopped by SIGINT after update 1 of 1" in errors and "failed" not in errors
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert load_model(run_dir / "cleanba_ppo.cleanrl_model").steps == 128
    assert not (run_dir / "replay.mp4").exists()


def test_what_cannot_be_filmed_is_refused_before_the_training(run, tmp_path):
    with pytest.raises(UsageError, match="Catch-v0 cannot be filmed"):
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
    with pytest.raises(
        UsageError, match=f"--{flag.replace('_', '-')} needs {module_name}; .*'.\\[{extra}\\]'"
    ):
        run(**{flag: True})
    assert not list(tmp_path.iterdir())


def test_extras_are_not_imported_unless_asked_for():
    script = "import sys, cleanba.cleanba_ppo; print([m for m in ('wandb', 'huggingface_hub', 'imageio_ffmpeg', 'matplotlib') if m in sys.modules])"  # noqa: E501
    shown = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]", shown.stderr
