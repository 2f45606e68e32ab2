"""An actor with environments that follow a script: what it asks of the policy, what it hands over."""

from collections import Counter

import jax
import numpy as np
import pytest
from helpers.specs import LIKE, decide, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanba.cleanba_ppo import Args
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.topology import Topology
from cleanba.envs.episodes import Episode
from cleanba.envs.spec import EnvStep
from cleanba.runtime.devices import learner_devices, learner_mesh
from cleanba.sebulba.actor import Actor, Version
from cleanba.sebulba.channel import Channel, ChannelClosed, DevicePriority
from cleanba.sebulba.inference import pack
from cleanba.sebulba.rollout import RolloutBuffer

ENV = make_spec("Scripted", (1,), np.float32, 10)


class Scripted:
    """Observation: 100 · environment + steps so far. Reward: the action. An environment ends with the steps
    [step, env] in `terminated` or `truncated`. Those under way come in the order that `order` gives them."""

    def __init__(self, envs, batch, *, terminated=(), truncated=(), order=lambda under_way: under_way):
        self.batch = batch
        self.steps = np.zeros(envs, np.int64)
        self.action = np.zeros(envs, np.float32)
        self.terminated, self.truncated, self.order = set(terminated), set(truncated), order
        self.under_way = []

    def reset(self):
        self.under_way = list(range(len(self.steps)))

    def send(self, action, env):
        assert len(env) == self.batch and not set(env.tolist()) & set(self.under_way)
        self.action[env] = action
        self.steps[env] += 1
        self.under_way += env.tolist()

    def receive(self):
        assert len(self.under_way) >= self.batch, "EnvPool would wait forever"
        env = np.array(self.order(self.under_way)[: self.batch], np.int32)
        self.under_way = [e for e in self.under_way if e not in env]
        slots = list(zip((self.steps[env] - 1).tolist(), env.tolist(), strict=True))
        terminated = np.array([slot in self.terminated for slot in slots])
        truncated = np.array([slot in self.truncated for slot in slots])
        obs = (100 * env + self.steps[env]).astype(np.float32)[:, None]
        reward = self.action[env]
        return EnvStep(env, obs, reward, terminated, truncated, 10 * reward, terminated | truncated)


def make_actor(act, envs, *, steps, updates, inference_batch, learners=(1, 2), first_update=0):
    n = len(envs.steps)
    topology = Topology((0,), learners)
    sizes = dict(num_steps=steps, local_num_envs=n, num_actor_threads=1, total_timesteps=updates * steps * n)
    args = Args(**sizes, num_minibatches=1, inference_batch=inference_batch)
    return Actor(
        act=lambda version, obs, state, integers: (pack(act(version, obs, *integers[1:])), state),
        like=LIKE,
        initial_state=(),
        envs=envs,
        env=ENV,
        env_id=np.arange(8, 8 + n, dtype=np.int32),
        plan=BatchPlan.create(args, topology),
        device=jax.local_devices()[0],
        mesh=learner_mesh(topology),
        learner_devices=learner_devices(topology),
        params=Channel(updates),
        rollouts=Channel(updates),
        priority=DevicePriority(),
        first_update=first_update,
        progress=np.zeros(1, np.int64),
    )


# ------------------------------------------------------------------------------------------ two rollouts

T, N = 3, 2
# Environment 0 ends with step 2, the last of the first rollout; environment 1 is truncated at step 3.
TERMINATED = np.array([[0, 0], [0, 0], [1, 0], [0, 0], [0, 0], [0, 0]], bool)
TRUNCATED = np.array([[0, 0], [0, 0], [0, 0], [0, 1], [0, 0], [0, 0]], bool)


def two_rollouts(inference_batch, env_batch=2):
    asked = []

    def act(params, obs, env_id, step):
        asked.append((params, obs[:, 0].tolist(), env_id.tolist(), step.tolist()))
        return decide(env_id % 7 + step, obs[:, 0] / 2, obs[:, 0] * 2)

    envs = Scripted(N, env_batch, terminated=[(2, 0)], truncated=[(3, 1)])
    actor = make_actor(act, envs, steps=T, updates=2, inference_batch=inference_batch)
    for version in (0, 1):
        actor.params.put(Version(version, f"version {version}"))
    actor.run()
    assert actor.progress[0] == 2 * T
    return [actor.rollouts.get() for _ in range(2)], asked


@pytest.mark.parametrize(("inference_batch", "env_batch"), [(1, 1), (1, 2), (2, 2)])
def test_two_rollouts_to_the_letter(inference_batch, env_batch):
    (first, second), _ = two_rollouts(inference_batch, env_batch)
    step = np.arange(2 * T + 1)[:, None]
    obs = np.array([[0.0, 100.0]]) + step  # [2T + 1, N]
    action = np.array([[1, 2]]) + step[:-1]  # 8 % 7 + step, 9 % 7 + step
    valid = np.array([[1, 1], [1, 1], [1, 1], [0, 1], [1, 0], [1, 1]], bool)  # False after an end
    for u, output in enumerate((first, second)):
        rollout, rows = output.rollout, slice(u * T, u * T + T)
        np.testing.assert_array_equal(rollout.obs[..., 0], obs[u * T : u * T + T + 1])
        np.testing.assert_array_equal(rollout.action, action[rows])
        np.testing.assert_array_equal(rollout.record.logprob, obs[rows] / 2)
        np.testing.assert_array_equal(rollout.record.value, obs[rows] * 2)
        np.testing.assert_array_equal(rollout.reward, action[rows])
        np.testing.assert_array_equal(rollout.terminated, TERMINATED[rows])
        np.testing.assert_array_equal(rollout.truncated, TRUNCATED[rows])
        np.testing.assert_array_equal(rollout.valid, valid[rows])
        expected = (action, obs[:-1] / 2, obs[:-1] * 2, action, TERMINATED, TRUNCATED)
        for digested, whole in zip(output.transitions, expected, strict=True):
            np.testing.assert_array_equal(digested, whole[rows])
        np.testing.assert_array_equal(output.env_id, [8, 9])
        assert output.lags == {0}
    assert first.episodes == [Episode(10.0 * (1 + 2 + 3), 3)]
    assert second.episodes == [Episode(10.0 * (2 + 3 + 4 + 5), 4)]


def test_the_policy_is_asked_with_the_environments_and_their_steps():
    """In calls of one size; steps continue over updates; each rollout uses one version of the params."""
    _, asked = two_rollouts(inference_batch=1)
    assert asked[:2] == [("version 0", [0.0], [8], [0]), ("version 0", [100.0], [9], [0])]
    assert asked[-2:] == [("version 1", [5.0], [8], [5]), ("version 1", [105.0], [9], [5])]
    _, asked = two_rollouts(inference_batch=2)
    assert asked[T] == ("version 1", [3.0, 103.0], [8, 9], [3, 3])


def test_episodes_are_reported_in_the_order_of_their_slots():
    """Environment 2 ends at step 0 and is the last to come, environment 0 ends at step 1."""
    ends = [(0, 2), (1, 0), (1, 3)]
    orders = (lambda under_way: under_way, lambda under_way: under_way[::-1])
    reported = []
    for order in orders:
        envs = Scripted(4, 2, terminated=ends, order=order)
        actor = make_actor(by_version, envs, steps=4, updates=1, inference_batch=2)
        actor.params.put(Version(0, 1))
        actor.run()
        reported.append(actor.rollouts.get().episodes)
    assert [episode.length for episode in reported[0]] == [1, 2, 2]
    assert reported[0] == reported[1]


# --------------------------------------------------------------------------------------------- any order


def by_version(version, obs, env_id, step):
    """An action that tells which params, environment and step it comes from."""
    return decide(1000 * version + 10 * step + env_id, obs[:, 0] + version, obs[:, 0] - version)


class NextParams:
    """A params channel with the learner behind it: the params for an update are there once the rollout
    `1 + lag` updates before it is complete, at the earliest, and whenever `ready` says so."""

    def __init__(self, lag, handed_over, ready, first):
        self.lag, self.handed_over, self.ready, self.first, self.taken = lag, handed_over, ready, first, 0

    def poll(self):
        return self.get() if self.taken < self.limit and self.ready() else None

    def get(self):
        assert self.taken < self.limit, "waits for params that will never come"
        version = self.first + max(0, self.taken - self.lag)
        self.taken += 1
        return Version(version, version)

    @property
    def limit(self):
        return 1 + self.lag + len(self.handed_over)

    def check_open(self):
        pass


class Collector(list):
    put = list.append


@given(st.data(), st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(0, 2), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_slot_is_written_once_by_the_right_params(data, batch, batches, lag, sync):
    """Whatever the order in which environments come, and the moment at which params do; also resumed."""
    n, steps, updates = batch * batches, data.draw(st.integers(1, 4)), 4
    first = data.draw(st.integers(0, 2))
    some_slots = st.sets(st.tuples(st.integers(0, updates * steps - 1), st.integers(0, n - 1)))
    ends = data.draw(some_slots)
    written = Counter()
    straddling = []

    class Counting(RolloutBuffer):
        def write(self, t, env, **rows):
            written.update(
                (id(self), name, *slot)
                for name in rows
                for slot in zip(t.tolist(), env.tolist(), strict=True)
            )
            kept.append(self)  # their ids stay theirs
            super().write(t, env, **rows)

    def act(version, obs, env_id, step):
        straddling.append(len(set((step // steps).tolist())) > 1)
        assert len(obs) == batch
        return by_version(version, obs, env_id, step)

    kept = []

    def any_order(under_way):
        return data.draw(st.permutations(under_way))

    envs = Scripted(n, n if sync else batch, truncated=ends, order=any_order)
    options = dict(steps=steps, updates=first + updates, inference_batch=batch, learners=(1,))
    actor = make_actor(act, envs, **options, first_update=first)
    actor.rollouts = Collector()
    actor.params = NextParams(lag, actor.rollouts, ready=lambda: data.draw(st.booleans()), first=first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cleanba.sebulba.actor.RolloutBuffer", Counting)
        actor.run()

    assert len(actor.rollouts) == updates and not envs.under_way
    check_written_once(written, {id(buffer) for buffer in kept}, steps, n)
    ended = np.zeros((1 + updates * steps, n), bool)  # row s: with the step before s
    for slot in sorted(ends):  # an end on a reset row would be none
        ended[slot[0] + 1, slot[1]] = True
    for u, output in enumerate(actor.rollouts):
        check_output(output, u, ended, first=first, version=first + max(0, u - lag), steps=steps)
    assert not (sync and any(straddling))


def check_written_once(written, buffers, steps, n):
    fields = dict(action=steps, record=steps, valid=steps, reward=steps, terminated=steps)
    fields |= dict(truncated=steps, obs=steps + 1)
    slots = {(name, t, e) for name, rows in fields.items() for t in range(rows) for e in range(n)}
    for buffer in buffers:
        times = {slot: written.pop((buffer, *slot), 0) for slot in slots}
        assert set(times.values()) == {1}
    assert not written


def check_output(output, u, ended, *, first, version, steps):
    """The rollout of the u-th update, whose actions are those of `version`."""
    env = np.arange(ended.shape[1])
    played = np.arange(u * steps, (u + 1) * steps + 1)[:, None]  # since this actor began
    step = first * steps + played[:-1]
    expected = by_version(version, (100 * env + played[:-1])[..., None], 8 + env, step)
    np.testing.assert_array_equal(output.rollout.obs[..., 0], 100 * env + played)
    np.testing.assert_array_equal(output.rollout.action, expected.action)
    np.testing.assert_array_equal(output.rollout.record.logprob, 100 * env + played[:-1] + version)
    np.testing.assert_array_equal(output.rollout.reward, expected.action)
    np.testing.assert_array_equal(output.rollout.valid, ~ended[played[:-1, 0]])
    finished = ended[played[1:, 0]] & ~ended[played[:-1, 0]]
    assert len(output.episodes) == finished.sum()
    assert output.lags == {first + u - version}


def test_a_call_that_straddles_two_updates_is_made_under_both():
    """Environment 0 is ahead: its step 2 is the first of the second rollout, when 1 is still at step 1."""
    calls = []

    def act(version, obs, env_id, step):
        calls.append((version, env_id.tolist(), step.tolist()))
        return by_version(version, obs, env_id, step)

    orders = iter([[0, 1], [2, 3], [0, 2], [0, 1]])  # the first two: all begin
    envs = Scripted(4, 2, order=lambda under_way: next(orders, under_way))
    actor = make_actor(act, envs, steps=2, updates=2, inference_batch=2)
    for version in (0, 1):
        actor.params.put(Version(version, version))
    actor.run()
    assert calls[3:5] == [(0, [8, 9], [2, 1]), (1, [8, 9], [2, 1])]
    for u in (0, 1):
        assert set((np.asarray(actor.rollouts.get().rollout.action) // 1000).flat) == {u}


def test_an_actor_notices_the_end_within_a_step():
    """Its params channel is closed while it collects."""
    steps = []

    def act(params, obs, env_id, step):
        steps.append(step)
        actor.params.close()
        return decide(env_id * 0, obs[:, 0], obs[:, 0])

    actor = make_actor(act, Scripted(N, N), steps=1000, updates=1, inference_batch=N, learners=(0,))
    actor.params.put(Version(0, "version 0"))
    with pytest.raises(ChannelClosed):
        actor.run()
    assert len(steps) == 1


def test_an_actor_has_priority_while_it_waits_for_its_actions():
    waiting = []

    def act(params, obs, env_id, step):
        waiting.append(actor.priority.waiting)
        return decide(env_id, obs[:, 0], obs[:, 0])

    actor = make_actor(act, Scripted(2, 2), steps=2, updates=1, inference_batch=1)
    actor.params.put(Version(0, None))
    actor.run()
    assert set(waiting) == {1} and actor.priority.waiting == 0
