"""EnvPool has no wheels for every system: without it, Gymnasium's environments work."""

import pytest
from helpers.runs import REPO, run_python

from cleanba.cleanba_ppo import Args
from cleanba.config.errors import UsageError
from cleanba.envs.factory import BACKENDS, describe, env_spec

HIDE = "import sys; sys.modules['envpool'] = None\n"  # importing it now fails, as if it were not there


def test_everything_imports_and_gymnasium_is_taken():
    script = (
        HIDE
        + """
import cleanba.training.train, cleanba.cleanba_eval, cleanba.cleanba_bench, cleanba.cleanba_envs
from cleanba.cleanba_ppo import Args
from cleanba.envs.factory import env_spec, make_envs
env = env_spec(Args(env_id="CartPole-v1"))
envs = make_envs(env, [1, 2], 1)
envs.reset()
print(env.backend, envs.receive().obs.shape)
envs.close()
"""
    )
    done = run_python(REPO, "-c", script)
    assert done.stdout == "gymnasium (2, 4)\n", done.stderr


def test_what_needs_it_says_so(monkeypatch):
    of_envpool = env_spec(Args(env_id="Breakout-v5"))
    monkeypatch.delitem(BACKENDS, "envpool")
    with pytest.raises(UsageError, match="--env-id Breakout-v5 is not a Gymnasium environment; "):
        env_spec(Args(env_id="Breakout-v5"))
    with pytest.raises(UsageError, match="EnvPool is not installed; pip install envpool"):
        env_spec(Args(env_id="Breakout-v5", env_backend="envpool"))
    with pytest.raises(UsageError, match="EnvPool is not installed"):
        describe(of_envpool)
