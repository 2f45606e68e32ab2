"""The contract: same seed, same run. What docs/reproducibility.md promises of one process is held here."""

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers.delays import delays
from helpers.equivalence import ALGORITHMS, check_lag, digests, distance, sgd

from cleanba import cleanba_ppo
from cleanba.agents.agent import ActorCriticRecord, act
from cleanba.agents.algorithm import Decision, Loss, Published
from cleanba.envs.factory import env_spec
from cleanba.sebulba.actor import Actor

each_algorithm = pytest.mark.parametrize("which", ALGORITHMS)
ppo_and_slowly_impala = pytest.mark.parametrize(
    "which", ["ppo", pytest.param("impala", marks=pytest.mark.slow)]
)
ATARI = dict(env_id="Breakout-v5", network="impala", channels=(4, 4), hiddens=(16,), num_steps=16)


@each_algorithm
@pytest.mark.parametrize("concurrency", [False, True], ids=["lag0", "lag1"])
def test_the_same_command_twice_gives_the_same_bits(run, which, concurrency):
    flags = ALGORITHMS[which] | dict(
        num_actor_threads=2, concurrency=concurrency, total_timesteps=12 * 16 * 8
    )
    first, again = (digests(run(**flags)[1]) for _ in range(2))
    assert first == again
    assert len(first) == 12
    assert len({params for _, params in first}) == len({data for data, _ in first}) == 12


@pytest.mark.parametrize(
    ("which", "concurrency"),
    [
        pytest.param("ppo", False, id="ppo-lag0", marks=pytest.mark.slow),
        pytest.param("ppo", True, id="ppo-lag1", marks=pytest.mark.slow),
        pytest.param("impala", False, id="impala-lag0", marks=pytest.mark.slow),
        pytest.param("impala", True, id="impala-lag1", marks=pytest.mark.slow),
    ],
)
def test_the_same_command_twice_gives_the_same_bits_on_atari(run, which, concurrency):
    """Sticky actions, two threads, two learners, batches cut in two, more than one chunk."""
    flags = (
        ALGORITHMS[which]
        | ATARI
        | dict(
            num_actor_threads=2,
            learner_device_ids=(1, 2),
            concurrency=concurrency,
            inference_batch=2,
            gradient_accumulation_steps={"ppo": 3, "impala": 2}[which],  # 3: short and padded chunks
            total_timesteps=3 * 16 * 8,
        )
    )
    first, again = (digests(run(**flags)[1]) for _ in range(2))
    assert first == again and len(first) == 3


def test_another_seed_is_another_run(run):
    one, two = (digests(run(seed=seed)[1]) for seed in (1, 2))
    assert not set(one) & set(two)


# --------------------------------------------------------------------------- how environments are stepped

STEPPING = ATARI | dict(channels=(4,), num_steps=8, local_num_envs=8, num_minibatches=2, concurrency=True)
SYNC = dict(env_stepping="sync", env_threads=1)
ASYNC = dict(env_stepping="async", env_threads=2)


@contextmanager
def load():
    """Two other processes keep the machine busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def counting_straddlers(found):
    """Whether a batch has actions of two versions."""
    choose = Actor.choose

    def counted(self, obs, env, step):
        decision, version = choose(self, obs, env, step)
        found.append(len(set(version.tolist())) > 1)
        return decision, version

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Actor, "choose", counted)
        yield


def check_stepping(run, which, *, batch, updates, ways):
    """All `ways` of stepping (flags, and what happens meanwhile) give the same bits and the exact lag."""
    same = ALGORITHMS[which] | STEPPING | dict(inference_batch=batch, total_timesteps=updates * 8 * 8)
    same |= dict(update_epochs=1) if which == "ppo" else {}
    runs = []
    for flags, *meanwhile in ways:
        with ExitStack() as stack:
            for hook in meanwhile:
                stack.enter_context(hook())
            _, rows = run(**same | flags)
        check_lag(rows, lag=1)
        runs.append(digests(rows))
    assert len(set(runs[0])) == updates
    for way, found in zip(ways, runs, strict=True):
        assert found == runs[0], f"other bits with {way}"


@ppo_and_slowly_impala
def test_how_environments_are_stepped_changes_no_bit(run, which):
    straddling = []
    with counting_straddlers(straddling):
        check_stepping(run, which, batch=2, updates=8, ways=[(SYNC,), (ASYNC, delays)])
    assert any(straddling) and not all(straddling)


def test_sending_each_frame_once_changes_no_bit(run, monkeypatch):
    """Not even at lost lives and the ends of games: the run is the same as with EnvPool's whole stacks."""
    same = STEPPING | ASYNC | dict(atari_preset="impala", num_steps=64, local_num_envs=4, inference_batch=2)
    same |= dict(network="mlp", update_epochs=1, learner_device_ids=(1, 2), total_timesteps=3 * 64 * 4)
    _, once = run(**same)
    assert sum(row["stats/games"] for row in once) > 0

    def unstacked(args):
        env = env_spec(args)
        return env._replace(obs=replace(env.obs, stack=1))

    monkeypatch.setattr("cleanba.training.setup.env_spec", unstacked)
    _, whole = run(**same)
    assert digests(once) == digests(whole) and len(set(digests(once))) == 3


@each_algorithm
def test_async_stepping_at_lag_0_changes_no_bit_either(run, which):
    """There the environments that are ahead wait for the params."""
    same = ALGORITHMS[which] | dict(concurrency=False, local_num_envs=8, num_minibatches=2, inference_batch=2)
    _, sync = run(**same, **SYNC)
    with delays():
        _, ready_first = run(**same, **ASYNC)
    assert digests(sync) == digests(ready_first)
    check_lag(ready_first, lag=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("batch", [4, 2], ids=["N/2", "N/4"])
@each_algorithm
def test_no_way_of_stepping_changes_a_bit_in_fifty_updates(run, which, batch):
    """Twice each; while other processes load the machine; with delays everywhere."""
    each = [dict(env_stepping=s, env_threads=n) for s in ("sync", "async") for n in (1, 2, 4)]
    ways = [(flags,) for flags in each for _ in range(2)]
    ways += [(flags, hook) for flags in each[1::3] for hook in (load, delays)]
    check_stepping(run, which, batch=batch, updates=50, ways=ways)


# ------------------------------------------------------------------------------------------------ layouts

SAME = 1e-5  # the distance of params that differ by float reassociation alone

# Of 24 environments. Layouts of two processes are in tests/distributed.
LAYOUTS = {
    "a0-l0": dict(local_num_envs=24),
    "a0-l1,2": dict(local_num_envs=24, learner_device_ids=(1, 2)),
    "a0-l1,2,3": dict(local_num_envs=24, learner_device_ids=(1, 2, 3)),
    "a0,1-l2,3": dict(local_num_envs=12, actor_device_ids=(0, 1), learner_device_ids=(2, 3)),
    "a0-l0, two threads": dict(local_num_envs=12, num_actor_threads=2),
}


def check_layouts(run, which, layouts=LAYOUTS, **flags):
    """The same data to the bit in the first update; the same params up to float reassociation after five."""
    same = ALGORITHMS[which] | dict(inference_batch=6, num_minibatches=2, total_timesteps=5 * 16 * 24) | flags
    parts = sgd(which, scale=1 if flags.get("network") else 10)
    runs = {name: run(parts, **same, **layouts[name]) for name in layouts}
    reference, reference_rows = runs["a0-l0"]
    for name, (outcome, rows) in runs.items():
        check_lag(rows, lag=1 if flags["concurrency"] else 0)
        assert rows[0]["data_digest"] == reference_rows[0]["data_digest"], f"other data on {name}"
        apart = distance(outcome.model.params, reference.model.params)
        assert apart < SAME, f"other params on {name}"
    return reference


@pytest.mark.parametrize(
    ("env", "concurrency"),
    [
        pytest.param({}, False, id="CartPole-lag0"),
        pytest.param({}, True, id="CartPole-lag1"),
        pytest.param(ATARI, False, id="Breakout-lag0", marks=pytest.mark.slow),
        pytest.param(ATARI, True, id="Breakout-lag1", marks=pytest.mark.slow),
    ],
)
@each_algorithm
def test_layouts_with_the_same_environments_give_the_same_run(run, which, env, concurrency):
    reference = check_layouts(run, which, **env, concurrency=concurrency)
    same = ALGORITHMS[which] | env | dict(local_num_envs=24, total_timesteps=16 * 24)
    start, _ = run(sgd(which, scale=0.0), **same)
    moved = distance(start.model.params, reference.model.params)
    assert moved > 50 * SAME, "SGD did not move: no test"


@ppo_and_slowly_impala
def test_chunks_change_no_more_than_the_last_bits(run, which):
    same = ALGORITHMS[which] | dict(local_num_envs=12, total_timesteps=5 * 16 * 12)  # impala: six columns
    whole, _ = run(sgd(which), **same, gradient_chunk=1000)
    for flags in (dict(gradient_chunk=33), dict(gradient_accumulation_steps=5)):
        chunked, _ = run(sgd(which), **same, **flags)
        assert distance(whole.model.params, chunked.model.params) < 1e-5


# ------------------------------------------------------------------------------------ each rule is needed


def fails(why, check, *args, **kwargs):
    with pytest.raises(AssertionError, match=f"^{why}"):
        check(*args, **kwargs)


@pytest.mark.slow
@each_algorithm
def test_without_keys_from_identity_stepping_changes_bits(run, monkeypatch, which):
    """The key of an action is that of its row in the batch."""

    def by_row(agent, key, published, obs, state, episode_start, env_id, step):
        return act(agent, key, published, obs, state, episode_start, jnp.arange(len(env_id)), step)

    monkeypatch.setattr(ALGORITHMS[which]["algorithm"], "act", by_row)
    fails("other bits", check_stepping, run, which, batch=2, updates=4, ways=[(SYNC,), (ASYNC, delays)])


@pytest.mark.slow
@each_algorithm
def test_without_both_versions_for_a_straddling_batch_stepping_changes_bits(run, monkeypatch, which):
    """All rows of a call have the params of the first update that is in it."""
    choose = Actor.choose

    def under_one_version(self, obs, env, step):
        versions, first = self.versions, int(step.min()) // self.plan.num_steps
        self.versions = {u: v._replace(published=versions[first].published) for u, v in versions.items()}
        decision, version = choose(self, obs, env, step)
        self.versions = versions
        return decision, version

    monkeypatch.setattr(Actor, "choose", under_one_version)
    fails("other bits", check_stepping, run, which, batch=2, updates=8, ways=[(SYNC,), (ASYNC, delays)])


TWO_LAYOUTS = {name: LAYOUTS[name] for name in ("a0-l0", "a0-l1,2")}


@pytest.mark.slow
@each_algorithm
def test_without_a_minibatch_plan_by_environment_layouts_change_params(run, monkeypatch, which):
    """A minibatch is drawn from the columns that a learner happens to have."""
    module = ALGORITHMS[which]["algorithm"]
    minibatches = module.minibatches

    def by_column(key, env_id, *, plan):
        columns = jnp.arange(len(env_id))
        return minibatches(key, columns if which == "ppo" else columns * 2 // len(env_id), plan=plan)

    monkeypatch.setattr(module, "minibatches", by_column)
    fails("other params", check_layouts, run, which, TWO_LAYOUTS, concurrency=False)


def test_without_global_statistics_layouts_change_params(run, monkeypatch):
    """Advantages are normalized with the mean of the learners' moments."""
    moments = cleanba_ppo.advantage_moments

    def mean_of_moments(rows, mask, global_sum, *, normalize):
        own = moments(rows, mask, lambda x: x, normalize=normalize)
        return jax.tree.map(lambda x: global_sum(x) / global_sum(jnp.ones(())), own)

    monkeypatch.setattr(cleanba_ppo, "advantage_moments", mean_of_moments)
    fails("other params", check_layouts, run, "ppo", TWO_LAYOUTS, concurrency=False)


def test_without_global_counts_layouts_change_params(run, monkeypatch):
    """The loss is the mean of the learners' means."""
    ppo_loss = cleanba_ppo.ppo_loss

    def mean_of_means(*rows, **kwargs):
        loss = ppo_loss(*rows, **kwargs)
        return loss._replace(total=loss.total / loss.denominator, denominator=jnp.ones(()))

    monkeypatch.setattr(cleanba_ppo, "ppo_loss", mean_of_means)
    fails("other params", check_layouts, run, "ppo", TWO_LAYOUTS, concurrency=False)


# ------------------------------------------------------------------------------------------------ the lag


@pytest.mark.parametrize(("concurrency", "versions"), [(False, [0, 1, 2, 3, 4]), (True, [0, 0, 1, 2, 3])])
def test_the_policy_lag_is_exact(run, concurrency, versions):
    """The only param counts the updates, and the policy reports it as the value of every observation."""
    seen = []

    def act(key, published, obs, state, episode_start, env_id, step):
        zeros = jnp.zeros(len(obs), jnp.int32)
        record = ActorCriticRecord(zeros.astype(jnp.float32), published.params + zeros)
        return Decision(zeros, record), state

    def prepare(published, rollout):
        jax.debug.callback(lambda value: seen.append(float(value)), rollout.record.value.mean())
        return rollout.record.value

    def loss(published, rows, mask, statistics):
        one = jnp.ones(())
        return Loss(
            -published.params, denominator=one, metrics={}, rows=one
        )  # the gradient is -1: an update adds 1

    run(
        dict(
            init=lambda key: Published(jnp.zeros(())),
            act=act,
            prepare=prepare,
            statistics=lambda rows, mask, global_sum: jnp.zeros(()),
            loss=loss,
            optimizer=optax.identity(),
            learning_rate=lambda update, extra: 1.0,
            epochs=1,
        ),
        concurrency=concurrency,
        num_minibatches=1,
    )
    jax.effects_barrier()
    assert seen == versions
