"""`cleanba.train`: what it accepts and returns, callbacks, threads, signals."""

import os
import shutil
import signal
import threading
from functools import partial
from types import SimpleNamespace

import gymnasium
import jax
import numpy as np
import pytest
from helpers.own_envs import Cue
from helpers.runs import REPO, read_rows, run_python

import cleanba
from cleanba import cleanba_impala, cleanba_ppo, cleanba_ppo_continuous
from cleanba.api import resolve
from cleanba.records.run_status import run_status

DIGESTS = ("params_digest", "data_digest")


def digests(training):
    return [training.rows[name].tolist() for name in DIGESTS]


@pytest.fixture
def registry():
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_it_returns_rows_a_policy_and_the_folder(train):
    training = train()
    assert training.rows["update"].tolist() == [1, 2, 3, 4, 5] and not training.stopped
    assert training.rows["global_step"].dtype.kind == "i" and training.rows["seconds"].dtype == np.float64
    assert np.isnan(training.rows["charts/SPS"][0]) and training.rows["charts/SPS"][1] > 0
    assert digests(training) == [[row[n] for row in read_rows(training.folder)] for n in DIGESTS]
    assert training.policy.model.steps == 320 and training.model is None and training.evaluation is None
    assert "finished after 320 steps" in repr(training)


def test_what_was_asked_for_after_the_training_is_there(train):
    training = train(save_model=True)
    assert training.model == training.folder / "cleanba_ppo.cleanrl_model"
    assert len(training.evaluation.returns) == 10
    assert run_status(training.folder).state == "finished"


# --------------------------------------------------------------------------------------------- callbacks


def test_true_stops_the_run_which_continues_bit_for_bit(train):
    seen = []

    def stop_after_three(row):
        seen.append(row["update"])
        row.clear()  # it is a copy
        return len(seen) == 3

    stopped = train(on_update=stop_after_three, save_model=True)
    assert seen == [1, 2, 3] and stopped.stopped and "can be resumed" in repr(stopped)
    assert stopped.rows["update"].tolist() == [1, 2, 3] and stopped.policy.model.steps == 3 * 64
    status = run_status(stopped.folder)
    assert (status.state, status.checkpoint) == ("stopped", 3) and stopped.model.exists()
    resumed = cleanba.train("ppo", resume=stopped.folder, progress=False)
    assert resumed.folder == stopped.folder and resumed.rows["update"].tolist() == [1, 2, 3, 4, 5]
    assert run_status(resumed.folder).state == "finished"
    again = train()  # its environments go on where they were; those of the resumed run were reset
    assert [x[:3] for x in digests(again)] == [x[:3] for x in digests(resumed)]


def test_true_at_the_last_update_is_the_end(train):
    training = train(on_update=lambda row: row["update"] == 5)
    assert not training.stopped and run_status(training.folder).state == "finished"


def test_an_exception_in_a_callback_leaves_a_checkpoint(train, tmp_path):
    def fail(row):
        if row["update"] == 2:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as failure:
        train(on_update=fail)
    (folder,) = (tmp_path / "runs").iterdir()
    assert "fail" in [entry.name for entry in failure.traceback]
    assert any(f"`cleanba ppo --resume {folder}` continues" in note for note in failure.value.__notes__)
    assert run_status(folder).checkpoint == 2
    resumed = cleanba.train("ppo", resume=folder, progress=False)
    assert resumed.rows["update"].tolist() == [1, 2, 3, 4, 5]


# ------------------------------------------------------------------------------- several, threads, signals


def test_two_trainings_at_once_give_what_they_give_alone(train):
    alone = {seed: digests(train(seed=seed)) for seed in (1, 2)}
    found = {}

    def work(seed):
        found[seed] = digests(train(seed=seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == alone and alone[1] != alone[2]


@pytest.fixture
def default_sigterm():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the tests have a handler of their own
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_leaves_a_checkpoint_and_the_process_alone(train, tmp_path, name, default_sigterm):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def interrupt(row):
        if row["update"] == 2:
            os.kill(os.getpid(), signal.Signals[name])

    flags = dict(total_timesteps=64 * 10_000)
    with pytest.raises(cleanba.Stopped, match=f"stopped by {name} after update .* --resume .* continues it"):
        train(on_update=interrupt, **flags)
    (folder,) = (tmp_path / "runs").iterdir()
    status = run_status(folder)
    assert status.state == "stopped" and status.checkpoint == status.last["update"] >= 2
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert not train(seed=3).stopped


def test_handlers_of_the_program_stay(train):
    got = []
    before = signal.signal(signal.SIGTERM, lambda *_: got.append("mine"))
    try:
        training = train(on_update=lambda row: os.kill(os.getpid(), signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not training.stopped and got


def test_a_thread_sets_no_handlers(train):
    kept = []

    def work():
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGURG)
        before = [signal.getsignal(number) for number in numbers]
        train(on_update=lambda row: kept.append([signal.getsignal(n) for n in numbers] == before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    assert kept == [True] * 5


def test_it_runs_as_a_script_without_a_main_guard(tmp_path):
    """As notebooks do: worker processes do not import the script."""
    script = """
import sys, cleanba
import gymnasium
class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low, {}
    def step(self, action):
        return self.observation_space.high, 1.0, True, False, {}
sys.modules["envpool"] = None
flags = dict(local_num_envs=4, num_actor_threads=1, num_steps=16, total_timesteps=128, env_threads=1)
training = cleanba.train(make_env=Mine, progress=False, **flags)
print(training.rows["charts/avg_episodic_return"][-1], cleanba.evaluate(training, 2).returns)
"""
    (tmp_path / "script.py").write_text(script)
    done = run_python(tmp_path, "script.py", PYTHONPATH=str(REPO), JAX_NUM_CPU_DEVICES="1")
    assert (done.returncode, done.stdout) == (0, "1.0 [1. 1.]\n"), done.stderr


# ---------------------------------------------------------------------------------- what can be trained


@pytest.mark.parametrize(
    "algorithm",
    [
        cleanba_ppo,
        SimpleNamespace(Args=cleanba_ppo.Args, make_algorithm=cleanba_ppo.make_algorithm),
        cleanba_ppo.Args(),
    ],
    ids=["module", "namespace", "args"],
)
def test_modules_and_arguments_are_the_same_as_a_name(train, algorithm):
    assert digests(train(algorithm, total_timesteps=64)) == digests(train("ppo", total_timesteps=64))


@pytest.mark.parametrize("preset", ["ppo_continuous", "ppo-continuous", cleanba_ppo_continuous])
def test_presets_have_their_flags(train, preset):
    training = train(preset, env_id="Pendulum-v1", total_timesteps=64, num_minibatches=2)
    args = training.policy.model.args
    assert args.normalize_rewards and args.exp_name == "cleanba_ppo_continuous" and args.hiddens == (16,)


def test_an_algorithm_and_a_preset_of_ones_own(train, tmp_path):
    shutil.copy(REPO / "examples/a2c.py", tmp_path)
    train = partial(train, total_timesteps=64, hiddens=cleanba_ppo.Args().hiddens)  # its network has --width
    training = train(tmp_path / "a2c.py", width=8)
    assert training.policy.model.algorithm_name == os.path.relpath(tmp_path / "a2c.py")
    assert training.policy.model.args.width == 8
    (tmp_path / "mine.py").write_text("from a2c import Args\nARGS = Args(width=4)\n")
    assert train(str(tmp_path / "mine.py")).policy.model.args.width == 4


def test_own_environments_resume_by_the_name_they_had(train, registry):
    options = {"max_episode_steps": 2}
    flags = dict(env_id="mine", env_options=options, total_timesteps=64)
    training = train(make_env=lambda **kw: Cue(**kw), **flags)
    assert training.rows["charts/avg_episodic_length"][-1] == 2
    gymnasium.registry.pop("mine")
    resumed = cleanba.train(
        resume=training.folder, make_env=lambda **kw: Cue(**kw), total_timesteps=128, progress=False
    )
    assert resumed.policy.env_id == "mine" and resumed.rows["update"].tolist() == [1, 2]


def test_own_environments_have_a_name_by_default(small, registry):
    del small["env_id"]
    training = cleanba.train(cleanba_impala, make_env=Cue, **small | dict(total_timesteps=64))
    assert training.policy.env_id == "own/Cue" and training.folder.name.startswith("own-Cue__")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (dict(lerning_rate=1e-3), "there is no flag --lerning-rate; did you mean --learning-rate?"),
        (dict(zzz=1), "there is no flag --zzz; cleanba ppo --help lists all"),
        (dict(hiddens=64), r"--hiddens cannot be 64; give tuple\[int, \.\.\.\]"),
        (dict(learning_rate="fast"), "--learning-rate cannot be 'fast'; give float"),
        (
            dict(network="cnn"),
            r"--network cannot be 'cnn'; give Literal\['auto', 'impala', 'nature', ",
        ),
        (dict(gamma=2), "--gamma 2 is out of range; give a number from 0 to 1"),
        (dict(num_steps=17), "--num-steps 17 cannot be split into --num-minibatches 4; try 16 or 20"),
        (dict(env_id="CartPol-v1"), "CartPol-v1 is not an EnvPool or Gymnasium environment; did you mean"),
    ],
)
def test_flags_are_refused_as_on_the_command_line(train, flags, message):
    with pytest.raises(cleanba.UsageError, match=message):
        train(**flags)


@pytest.mark.parametrize("algorithm", ["pqo", "eval", "no.py", 3, cleanba])
def test_what_is_no_algorithm_is_refused(train, algorithm):
    with pytest.raises(cleanba.UsageError, match="no algorithm|does not exist"):
        train(algorithm)


def test_a_name_is_no_factory(train):
    with pytest.raises(cleanba.UsageError, match="make_env is a class or .*; for a name use env_id"):
        train(make_env="a:B-v0")


@pytest.mark.parametrize(
    ("flags", "seen"),
    [({}, "--xla_gpu_deterministic_ops=true"), (dict(deterministic=False), None)],
)
def test_a_preset_that_fits_the_machine_is_deterministic_before_it_looks(monkeypatch, flags, seen):
    looks = []
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(jax, "default_backend", lambda: looks.append(os.environ.get("XLA_FLAGS")) or "cpu")
    assert resolve("ppo_fit", flags)[0].exp_name == "cleanba_ppo_fit" and looks == [seen]


def test_a_preset_that_fits_the_machine_is_refused_in_a_job(train):
    with pytest.raises(cleanba.UsageError, match="this preset fits one process to its machine; for several"):
        train("ppo_fit", distributed=True)


def test_whole_numbers_may_be_words():
    args = resolve("ppo", dict(total_timesteps="150k", num_steps="1e2"))[0]
    assert (args.total_timesteps, args.num_steps) == (150_000, 100)
    with pytest.raises(cleanba.UsageError, match="--num-steps cannot be 'many'; give int"):
        resolve("ppo", dict(num_steps="many"))


def test_values_of_programs_are_taken(train):
    flags = dict(total_timesteps=1.28e2, num_steps=np.int64(16), gamma=np.float32(0.5), seed=np.uint32(7))
    args = train(env_options={"max_episode_steps": 50}, **flags).policy.model.args
    assert (args.total_timesteps, args.num_steps, args.gamma, args.seed) == (128, 16, 0.5, 7)
    assert args.env_options == '{"max_episode_steps": 50}' and isinstance(args.total_timesteps, int)
