"""Evaluation of a model: which episodes count, their scores, and the command."""

import envpool
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.models import cleanba_eval, make_model
from helpers.videos import read_video

from cleanba.envs.envpool import Envs
from cleanba.envs.episodes import Episode
from cleanba.envs.spec import EnvStep
from cleanba.evaluation import evaluate as module
from cleanba.evaluation.atari_scores import ATARI_SCORES, human_normalized
from cleanba.evaluation.evaluate import Evaluation, evaluate
from cleanba.evaluation.model import save_model


class ScriptedEnvs:
    """Environments whose episodes have given lengths; every step gives a reward of 1, a reset takes one
    row."""

    lengths = ([9], [2, 3, 1, 1, 1, 1, 1])

    def __init__(self, env, seeds, threads, *, batch, background, rendered, patience):
        self.left = [list(lengths) for lengths in self.lengths]
        self.resetting = [False] * len(seeds)
        self.started = False

    def reset(self):
        pass

    def send(self, action, env):
        self.started = True

    def close(self):
        pass

    def receive(self):
        over = np.zeros(2, np.bool_)
        for e, episodes in enumerate(self.left if self.started else ()):
            if self.resetting[e]:
                self.resetting[e] = False
            elif episodes:
                episodes[0] -= 1
                if episodes[0] == 0:
                    over[e] = self.resetting[e] = True
                    episodes.pop(0)
        obs = np.zeros((2, 4), np.float32)
        return EnvStep(np.arange(2), obs, np.ones(2), over, over & False, np.ones(2), over)


def test_the_first_episodes_that_begin_count_not_the_first_that_end(monkeypatch):
    """The first to end are the second environment's, with lengths 2, 3 and 1."""
    monkeypatch.setattr("cleanba.envs.envpool.Envs", ScriptedEnvs)
    monkeypatch.setattr(module, "MAX_ENVS", 2)
    result = evaluate(make_model(), episodes=3, seed=1)
    assert result.episodes == [Episode(9.0, 9), Episode(2.0, 2), Episode(3.0, 3)]


def test_an_evaluation_depends_on_its_seed_only():
    model = make_model()
    first, again, other = (evaluate(model, episodes=5, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.episodes != other.episodes


def test_the_device_does_not_matter():
    model = make_model()
    first, last = (
        evaluate(model, episodes=5, seed=1, device=d) for d in (jax.devices()[0], jax.devices()[7])
    )
    assert first == last


def test_an_atari_episode_is_a_whole_game_under_the_training_preset(monkeypatch):
    """Breakout has five lives; under the impala preset each lost life terminates."""
    lives, receive = [0, 0], Envs.receive

    def counting_lives(self):
        env_step = receive(self)
        for e in range(2):
            lives[e] += bool(env_step.terminated[e]) and lives[e] < 5
        return env_step

    monkeypatch.setattr(Envs, "receive", counting_lives)
    model = make_model(env_id="Breakout-v5", atari_preset="impala", network="nature")
    result = evaluate(model, episodes=2, seed=1)
    assert lives == [5, 5]
    assert all(episode.length > 100 for episode in result.episodes)  # five serves


def test_scores_by_hand():
    episodes = [Episode(r, length) for r, length in [(1.7, 10), (30.5, 20), (59.3, 30)]]
    scores = Evaluation("Breakout-v5", 1, episodes).scores()
    assert scores["episodic_return"] == pytest.approx(30.5)
    assert scores["episodic_return_std"] == pytest.approx(28.8 * (2 / 3) ** 0.5)
    assert (scores["episodic_return_min"], scores["episodic_return_max"]) == (1.7, 59.3)
    assert scores["episodic_length"] == 20
    assert scores["human_normalized_score"] == pytest.approx(1.0)  # 30.5 is the human score
    assert "human_normalized_score" not in Evaluation("CartPole-v1", 1, episodes).scores()
    assert "return 30.50 ± 23.52 (from 1.7 to 59.3), length 20" in str(Evaluation("Breakout-v5", 1, episodes))


def test_there_are_human_scores_of_57_games():
    assert len(ATARI_SCORES) == 57
    assert {f"{game}-v5" for game in ATARI_SCORES} <= set(envpool.list_all_envs())
    assert all(scores.random < scores.human for scores in ATARI_SCORES.values())
    assert human_normalized("Pong-v5", -20.7) == 0
    assert human_normalized("CartPole-v1", 500) is None


# ---------------------------------------------------------------------------------------------- the command


def test_the_command_evaluates_and_reports(tmp_path):
    save_model(tmp_path / "a.cleanrl_model", make_model())
    done = cleanba_eval(tmp_path, "a.cleanrl_model", "--episodes", 3, "--seed", 5, "--video")
    assert done.returncode == 0, done.stderr
    title, result, video = done.stdout.splitlines()
    assert title == "CartPole-v1  ·  cleanba_ppo, seed 1, 640 steps  ·  on cpu"
    assert result == str(evaluate(make_model(), episodes=3, seed=5))
    assert len(read_video(tmp_path / video.removeprefix("video: "))[1]) > 8
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nothing.cleanrl_model"], "nothing.cleanrl_model does not exist"),
        ([".", "--episodes", 0], "--episodes 0 is too small"),
        ([".", "--seed", -1], "--seed -1 is out of range"),
        (["."], ". has no model; train with --save-model"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(tmp_path, argv, message):
    done = cleanba_eval(tmp_path, *argv)
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_a_state_follows_its_environment_and_restarts_with_the_episode(monkeypatch):
    """The policy counts the steps of each episode, and plays 1 in the first two."""
    played = []

    class Noting(ScriptedEnvs):
        def send(self, action, env):
            played.append(action.tolist())
            super().send(action, env)

    def play(key, published, obs, state, episode_start, env_id, step, *, greedy):
        count = jnp.where(episode_start, 1, state + 1)
        return (count <= 2).astype(jnp.int32), count

    monkeypatch.setattr("cleanba.envs.envpool.Envs", Noting)
    monkeypatch.setattr(module, "MAX_ENVS", 2)
    model = make_model()
    counting = model.algorithm._replace(play=play, initial_state=lambda n: jnp.zeros(n, jnp.int32))
    evaluate(model._replace(algorithm=counting), episodes=3, seed=1)
    assert [row[0] for row in played[:4]] == [1, 1, 0, 0]
    # Episodes of 2 and 3 steps, each followed by a reset row, which still belongs to the episode before.
    assert [row[1] for row in played[:7]] == [1, 1, 0, 1, 1, 0, 0]
