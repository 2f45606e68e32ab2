"""Advantages and value targets: GAE and V-trace, over sequences that contain reset rows.

EnvPool resets one call late: the row after an episode's last one has an action that the environment ignored.
Such a reset row (`valid` False) is not a transition. Its delta and advantage are 0, so nothing flows through
it; its value is V(obs) of the episode's final observation, from which a truncated episode bootstraps.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax


class VTrace(NamedTuple):
    target: Array  # [T, ...], for the value
    advantage: Array  # [T, ...], for the policy gradient


def gae(
    *,
    reward: Array,  # f32 [T, ...]
    value: Array,  # f32 [T, ...]
    last_value: Array,  # f32 [...], of the observation after the last step
    terminated: Array,  # bool [T, ...]; truncated episodes bootstrap from the final observation's value
    valid: Array,  # bool [T, ...]
    gamma: float,
    gae_lambda: float,
) -> Array:
    """Generalized advantage estimates [T, ...] (Schulman et al. 2016); targets are advantage + value."""
    discount = gamma * (1.0 - terminated)
    value_tp1 = jnp.concatenate([value[1:], last_value[None]])
    delta = reward + discount * value_tp1 - value

    def backward(advantage_tp1, step_t):
        delta_t, discount_t, valid_t = step_t
        advantage_t = valid_t * (delta_t + gae_lambda * discount_t * advantage_tp1)
        return advantage_t, advantage_t

    _, advantage = lax.scan(backward, jnp.zeros_like(last_value), (delta, discount, valid), reverse=True)
    return lax.stop_gradient(advantage)


def vtrace(
    *,
    reward: Array,  # f32 [T, ...]
    value: Array,  # f32 [T, ...]
    last_value: Array,  # f32 [...], of the observation after the last step
    log_rho: Array,  # f32 [T, ...]: log-probability of the action now, minus that when it was chosen
    terminated: Array,  # bool [T, ...]; truncated episodes bootstrap from the final observation's value
    valid: Array,  # bool [T, ...]
    gamma: float,
) -> VTrace:
    """V-trace (Espeholt et al. 2018, sec. 4.1) with lambda 1 and both importance weights clipped at 1."""
    discount = gamma * (1.0 - terminated)
    rho = jnp.where(valid, jnp.exp(jnp.minimum(log_rho, 0.0)), 0.0)  # min(rho, 1), and c is the same
    value_tp1 = jnp.concatenate([value[1:], last_value[None]])
    delta = rho * (reward + discount * value_tp1 - value)

    def backward(correction_tp1, step_t):
        delta_t, discount_t, c_t = step_t
        correction_t = delta_t + discount_t * c_t * correction_tp1
        return correction_t, correction_t

    _, correction = lax.scan(backward, jnp.zeros_like(last_value), (delta, discount, rho), reverse=True)
    target = value + correction
    target_tp1 = jnp.concatenate([target[1:], last_value[None]])
    advantage = rho * (reward + discount * target_tp1 - value)
    return VTrace(*lax.stop_gradient((target, advantage)))
