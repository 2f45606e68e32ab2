"""The learner with a loss whose gradient can be computed by hand, on one device and on several."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.specs import LIKE, make_spec

from cleanba.agents.algorithm import Algorithm, Loss, PerEnv, Published, Slots
from cleanba.cleanba_ppo import Args, minibatches
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import NotFinite
from cleanba.config.topology import Topology
from cleanba.runtime.devices import learner_devices, learner_mesh
from cleanba.sebulba.channel import ChannelClosed, DevicePriority
from cleanba.sebulba.learner import Learner
from cleanba.sebulba.rollout import RolloutBuffer, env_ids_of_actors, env_ids_of_columns
from cleanba.sebulba.sharding import PER_LEARNER, put_on_learners

ENV = make_spec("Vectors", (1,), np.float32, 2)


def toy_loss(published, rows, mask, statistics):
    """The total is w · (sum of x over valid rows), so the gradient is the mean of x over all valid rows."""
    valid = rows["valid"] & mask
    total = jnp.sum(published.params["w"] * (rows["x"] - statistics), where=valid)
    count = jnp.sum(valid).astype(jnp.float32)
    return Loss(total, denominator=count, metrics={"mean_x": jnp.sum(rows["x"], where=valid)}, rows=count)


def make(
    topology,
    *,
    epochs=1,
    stop_early=None,
    loss=toy_loss,
    learning_rate=lambda update, extra: 1.0,
    parts=None,
    **flags,
):
    sizes = dict(num_steps=4, local_num_envs=4, num_actor_threads=2, num_minibatches=1, total_timesteps=32)
    plan = BatchPlan.create(Args(**(sizes | flags)), topology)
    algorithm = Algorithm(
        init=lambda key: Published({"w": jnp.array(2.0)}),
        act=lambda: None,
        play=lambda: None,
        prepare=lambda published, rollout: {"x": rollout.reward, "valid": rollout.valid},
        minibatches=partial(minibatches, plan=plan),
        statistics=lambda rows, mask, global_sum: jnp.zeros(()),
        loss=loss,
        optimizer=optax.identity(),
        learning_rate=learning_rate,
        epochs=epochs,
        stop_early=stop_early,
    )._replace(**parts or {})
    return Learner(algorithm, plan, learner_mesh(topology), jax.random.key(0)), plan


def data():
    """x and valid [T=4, N=8]: valid rows are spread unevenly over the environments."""
    rng = np.random.default_rng(3)
    x = rng.integers(-9, 10, (4, 8)).astype(np.float32)
    valid = rng.random((4, 8)) < np.linspace(0.1, 1.0, 8)
    return x, valid


def update(learner, plan, topology, x, valid):
    mesh, devices = learner_mesh(topology), learner_devices(topology)
    rollouts = []
    for env_id in env_ids_of_actors(plan, process=0):
        buffer = RolloutBuffer(plan, ENV, LIKE)
        for t in range(plan.num_steps):
            zeros, columns = np.zeros(len(env_id), np.float32), np.arange(len(env_id))
            rows = dict(reward=[x[t, env_id]], valid=[valid[t, env_id]], action=[zeros], obs=[zeros[:, None]])
            buffer.write(np.full(len(env_id), t), columns, **rows)
        rollouts.append(buffer.shard_over_envs(mesh, devices))
    columns = put_on_learners(env_ids_of_columns(plan, process=0), PER_LEARNER, mesh, devices)
    first = learner.init(jax.random.key(0))
    state, metrics, rate, stop = learner.update(first, rollouts, columns, 0)
    assert float(first.params["w"]) == 2.0, "actors and checkpoints may still need it"
    assert stop == learner.stop
    return float(state.params["w"]), metrics


@pytest.mark.parametrize("layout", ["a0-l0", "a0-l1,2", "a0-l1,2,3,4", "a0,1-l2,3"])
@pytest.mark.parametrize("chunk_flags", [{}, dict(gradient_accumulation_steps=3), dict(gradient_chunk=1)])
def test_the_gradient_is_the_mean_over_all_valid_rows_of_all_learners(layout, chunk_flags):
    topology = Topology.parse(layout)
    threads = 2 // len(topology.actor_ids)
    learner, plan = make(topology, num_actor_threads=threads, **chunk_flags)
    x, valid = data()
    w, metrics = update(learner, plan, topology, x, valid)
    assert w == pytest.approx(2.0 - x[valid].mean(), rel=1e-6)
    assert metrics["mean_x"] == pytest.approx(x[valid].mean(), rel=1e-6)
    per_env_means = np.mean([x[:, e][valid[:, e]].mean() for e in range(8) if valid[:, e].any()])
    assert abs(per_env_means - x[valid].mean()) > 0.1, "a mean of means would pass too: no test"


def test_minibatches_are_one_optimizer_step_each_and_cover_the_batch():
    """With w moving by each minibatch's mean, four equal minibatches move it by the sum of their means."""
    topology = Topology.parse("a0-l1,2")
    learner, plan = make(topology, num_minibatches=4)
    x, _ = data()
    w, metrics = update(learner, plan, topology, x, np.ones((4, 8), bool))
    assert w == pytest.approx(2.0 - 4 * x.mean(), rel=1e-6)
    assert metrics["mean_x"] == pytest.approx(x.mean(), rel=1e-5)


def test_a_minibatch_of_reset_rows_only_has_no_gradient():
    topology = Topology.parse("a0-l0")
    learner, plan = make(topology)
    w, metrics = update(learner, plan, topology, data()[0], np.zeros((4, 8), bool))
    assert w == 2.0
    assert metrics == {"mean_x": 0.0}


def test_an_early_stop_skips_the_remaining_epochs():
    seen = []
    topology = Topology.parse("a0-l1,2")
    learner, plan = make(
        topology,
        epochs=5,
        num_minibatches=2,
        stop_early=lambda metrics: seen.append(metrics) or len(seen) == 2,
    )
    x, valid = data()
    w, _ = update(learner, plan, topology, x, valid)
    assert len(seen) == 2
    assert all(epoch["mean_x"] == pytest.approx(x[valid].mean(), rel=1e-6) for epoch in seen)


def test_each_epoch_draws_new_minibatches():
    """Over two epochs of two minibatches, the order differs, so the means of the steps do."""
    topology = Topology.parse("a0-l0")
    learner, plan = make(topology, num_minibatches=2)
    columns = put_on_learners(
        env_ids_of_columns(plan, 0), PER_LEARNER, learner_mesh(topology), learner_devices(topology)
    )
    batch = {"x": np.zeros((4, 8), np.float32), "valid": np.ones((4, 8), bool)}

    def draw(u, e):
        return learner.plan_epoch(learner.key, batch, columns, np.int32(u), np.int32(e))[0].t

    drawn = {(u, e): np.asarray(draw(u, e)).tobytes() for u in (0, 1) for e in (0, 1)}
    assert len(set(drawn.values())) == 4


@pytest.mark.parametrize("layout", ["a0-l0", "a0-l1,2"])
def test_a_vote_to_stop_comes_back_from_the_mesh_and_changes_no_gradient(layout):
    topology = Topology.parse(layout)
    learner, plan = make(topology)
    before = update(learner, plan, topology, *data())
    learner.stop = True
    assert update(learner, plan, topology, *data()) == before


def test_a_vote_during_an_update_takes_effect_at_its_end(monkeypatch):
    topology = Topology.parse("a0-l1,2")
    learner, plan = make(topology, num_minibatches=4)
    minibatch_sums, calls = learner.minibatch_sums, []

    def interrupted(*inputs):
        calls.append(1)
        learner.stop = len(calls) >= 3
        return minibatch_sums(*inputs)

    monkeypatch.setattr(learner, "minibatch_sums", interrupted)
    update(learner, plan, topology, *data())  # which compares
    assert learner.stop


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (dict(loss=np.nan), "loss/mean_x"),
        (dict(gradient=np.inf), "gradient/w"),
        (dict(rate=np.inf), "params/w"),
    ],
)
def test_the_first_tensor_that_is_not_finite_is_named(bad, named):
    """In the second of two optimizer steps, the first that sees a row with x = 1."""

    def loss(published, rows, mask, statistics):
        fine = toy_loss(published, rows, mask, statistics)
        poison = {what: jnp.where(jnp.any(rows["x"] == 1), value, 0.0) for what, value in bad.items()}
        total = fine.total + published.params["w"] * poison.get("gradient", 0.0)
        return fine._replace(total=total, metrics={"mean_x": fine.metrics["mean_x"] + poison.get("loss", 0)})

    topology = Topology.parse("a0-l1,2")
    learner, plan = make(
        topology, epochs=2, loss=loss, learning_rate=lambda update, extra: bad.get("rate", 1.0)
    )
    with pytest.raises(NotFinite, match=f"{named} is not finite in update 1, optimizer step 1 of 2"):
        update(learner, plan, topology, np.ones((4, 8), np.float32), np.ones((4, 8), bool))


@pytest.mark.parametrize("chunk_flags", [dict(gradient_chunk=1000), dict(gradient_chunk=2)])
def test_few_chunks_are_in_flight(monkeypatch, chunk_flags):
    """Also where every minibatch is one chunk: before one is dispatched, all but the last one have
    finished."""
    topology = Topology.parse("a0-l1,2")
    learner, plan = make(topology, epochs=3, num_minibatches=4, **chunk_flags)
    dispatched, waited = [], []
    differentiate, wait = learner.differentiate, jax.block_until_ready

    def count_dispatch(*inputs):
        dispatched.append(len(waited))
        return differentiate(*inputs)

    monkeypatch.setattr(learner, "differentiate", count_dispatch)
    monkeypatch.setattr(jax, "block_until_ready", lambda x: waited.append(1) or wait(x))
    update(learner, plan, topology, *data())
    assert dispatched == [max(0, i - 1) for i in range(3 * 4 * plan.chunks)]


def test_before_each_chunk_the_learner_yields_to_actors_on_its_device():
    topology = Topology.parse("a0-l0")
    learner, plan = make(topology, gradient_chunk=1)
    before = update(learner, plan, topology, *data())
    yielded, priority = [], DevicePriority()
    priority.yield_to = yielded.append
    yielding = Learner(learner.algorithm, plan, learner_mesh(topology), jax.random.key(0), priority)
    assert update(yielding, plan, topology, *data()) == before
    assert len(yielded) == yielding.chunks_done == learner.chunks_done > 1


@pytest.mark.parametrize("layout", ["a0-l0", "a0-l1,2"])
def test_parts_of_a_batch_may_have_a_row_per_environment(layout):
    """Whole sequences: the loss weighs each with the first reward of its environment."""

    def whole_sequences(key, env_id):
        env = jnp.broadcast_to(jnp.arange(len(env_id)), (1, 2, 4, len(env_id)))[..., : len(env_id) // 2]
        env = env + jnp.array([0, len(env_id) // 2])[:, None, None]  # two chunks
        t = jnp.broadcast_to(jnp.arange(4)[:, None], env.shape)
        return Slots(t, env, jnp.ones(env.shape, bool))

    def loss(published, rows, mask, statistics):
        weight = rows["weight"].values  # [B]
        count = jnp.sum(mask).astype(jnp.float32)
        total = jnp.sum(published.params["w"] * weight * rows["x"])
        return Loss(total, denominator=count, metrics={"seen": statistics * count}, rows=count)

    topology = Topology.parse(layout)
    parts = dict(
        prepare=lambda published, rollout: {"x": rollout.reward, "weight": PerEnv(rollout.reward[0])},
        minibatches=whole_sequences,
        statistics=lambda rows, mask, global_sum: global_sum(jnp.sum(rows["weight"].values)),
    )
    learner, plan = make(topology, loss=loss, parts=parts, gradient_accumulation_steps=2)
    x, _ = data()
    w, metrics = update(learner, plan, topology, x, np.ones((4, 8), bool))
    assert w == pytest.approx(2.0 - (x * x[0]).mean(), rel=1e-5)
    assert metrics["seen"] == pytest.approx(x[0].sum())


def test_an_update_that_nobody_waits_for_is_left_at_the_next_chunk():
    topology = Topology((0,), (0,))
    learner, plan = make(topology, num_minibatches=2)
    x, valid = data()
    learner.abandoned = True
    with pytest.raises(ChannelClosed):
        update(learner, plan, topology, x, valid)
    assert learner.chunks_done == 0
