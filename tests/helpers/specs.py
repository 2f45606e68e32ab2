"""Small environments and decisions, on paper."""

import jax
import numpy as np

from cleanba.agents.agent import ActorCriticRecord
from cleanba.agents.algorithm import Decision
from cleanba.envs.spec import ActionSpec, ArraySpec, EnvSpec


def make_spec(env_id, shape, dtype, actions, stack=1):
    obs = ArraySpec(shape, np.dtype(dtype), stack)
    return EnvSpec("envpool", env_id, {}, obs, ActionSpec("discrete", n=actions))


def decide(action, logprob, value):
    return Decision(action, ActorCriticRecord(logprob, value))


NUMBER, WHOLE = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.int32)
LIKE = decide(WHOLE, NUMBER, NUMBER)  # an actor-critic's decision about discrete actions
