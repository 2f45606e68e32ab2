import gc
import json

import jax
import psutil
import pytest

from cleanba import cleanba_impala


def test_a_run_folder_holds_a_row_per_update_and_the_arguments(run):
    outcome, rows = run(total_timesteps=7 * 64 + 63, log_frequency=2)
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [row["global_step"] for row in rows] == [64 * u for u in range(1, 8)]
    assert rows[0]["charts/learning_rate"] == 2.5e-4
    assert rows[-1]["charts/learning_rate"] == pytest.approx(2.5e-4 / 7)
    for name in ("loss", "policy_loss", "value_loss", "entropy", "approx_kl"):
        assert isinstance(rows[-1][f"losses/{name}"], float)
    assert "charts/SPS" not in rows[0] and rows[1]["charts/SPS"] > 0
    record = json.loads((outcome.run_dir / "args.json").read_text())
    assert record["layout"] == "a0-l0-d1"
    assert record["args"]["env_id"] == "CartPole-v1"
    assert record["plan"]["inference_batch"] == 4  # resolved
    assert record["network"] == "mlp"
    assert outcome.run_dir.name.startswith("CartPole-v1__cleanba_ppo__1__")


def test_two_runs_in_the_same_second_have_two_folders(run):
    assert run(total_timesteps=64)[0].run_dir != run(total_timesteps=64)[0].run_dir


def test_returns_are_those_of_the_episodes(run):
    """In CartPole every step gives 1: return and length agree."""
    _, rows = run(total_timesteps=10 * 64)
    assert rows[-1]["charts/avg_episodic_return"] == rows[-1]["charts/avg_episodic_length"] > 8
    assert rows[-1]["stats/games"] > 0


@pytest.mark.parametrize(
    "env_id",
    [
        "Catch-v0",
        "Taxi-v3",
        pytest.param("Acrobot-v1", marks=pytest.mark.slow),
        pytest.param("MiniGrid-Empty-5x5-v0", marks=pytest.mark.slow),
    ],
)
def test_any_discrete_environment_trains(run, env_id):
    _, rows = run(env_id=env_id, total_timesteps=2 * 64, channels=(4,))
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("preset", "dtype"),
    [
        ("impala", "float32"),
        pytest.param("machado", "float32", marks=pytest.mark.slow),
        pytest.param("impala", "bfloat16", marks=pytest.mark.slow),
        pytest.param("machado", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_atari_trains_under_both_presets(run, preset, dtype):
    _, rows = run(
        env_id="Pong-v5",
        atari_preset=preset,
        compute_dtype=dtype,
        network="nature",
        num_steps=8,
        total_timesteps=2 * 32,
    )
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("actors", "learners"),
    [
        ((0,), (0,)),
        pytest.param((0,), (0, 1), marks=pytest.mark.slow),
        ((0,), (1, 2)),
        pytest.param((0,), (1, 2, 3), marks=pytest.mark.slow),
        pytest.param((0,), (1, 2, 3, 4), marks=pytest.mark.slow),
        ((0,), (1, 2, 3, 4, 5, 6)),
        ((0, 1), (2, 3)),
    ],
)
def test_every_layout_trains(run, actors, learners):
    _, rows = run(
        actor_device_ids=actors,
        learner_device_ids=learners,
        local_num_envs=60,
        num_steps=8,
        num_actor_threads=2,
        concurrency=True,
        total_timesteps=3 * 8 * 120 * len(actors),
    )
    assert len(rows) == 3


def test_target_kl_skips_epochs(run):
    """So small a target is passed in the first epoch; the params then are those of one epoch."""
    one = run(update_epochs=1)[1]
    stopped = run(update_epochs=4, target_kl=1e-12)[1]
    never = run(update_epochs=4, target_kl=1e3)[1]
    plain = run(update_epochs=4)[1]
    assert [r["params_digest"] for r in stopped] == [r["params_digest"] for r in one]
    assert [r["params_digest"] for r in never] == [r["params_digest"] for r in plain]
    assert one[0]["params_digest"] != plain[0]["params_digest"]


@pytest.mark.parametrize(
    ("steps", "within", "least"),
    [(25_000, 25_000, 80), pytest.param(150_000, 130_000, 475, marks=pytest.mark.slow, id="solved")],
)
def test_cartpole_is_learned(run, steps, within, least):
    """Solved within 400,000 steps was asked for; with these flags, README's, three seeds needed 85,000 to
    111,000, and had 112 and more after 25,000."""
    _, rows = run(
        local_num_envs=8,
        num_steps=32,
        num_minibatches=1,
        update_epochs=20,
        learning_rate=1e-3,
        gamma=0.98,
        gae_lambda=0.8,
        clip_coef=0.2,
        ent_coef=0.0,
        hiddens=(64, 64),
        total_timesteps=steps,
    )
    returns = [row.get("charts/avg_episodic_return", 0) for row in rows if row["global_step"] <= within]
    assert max(returns) >= least


@pytest.mark.slow
def test_cartpole_is_solved_by_impala(run):
    _, rows = run(
        algorithm=cleanba_impala,
        local_num_envs=8,
        num_steps=20,
        num_minibatches=1,
        learning_rate=1e-2,
        gamma=0.98,
        ent_coef=0.001,
        concurrency=True,
        hiddens=(64, 64),
        total_timesteps=200_000,
    )
    assert max(row.get("charts/avg_episodic_return", 0) for row in rows) >= 475


def memory_growth(run, updates):
    """MiB between a tenth of the updates and their end, read while training."""
    process, sizes = psutil.Process(), []

    def learning_rate(update, extra):
        if update in (updates // 10, updates - 1):
            gc.collect()
            sizes.append(process.memory_info().rss)
        return 1e-4

    run(
        dict(learning_rate=learning_rate),
        env_id="CartPole-v1",
        local_num_envs=2,
        num_actor_threads=2,
        num_steps=4,
        num_minibatches=1,
        update_epochs=1,
        concurrency=True,
        total_timesteps=16 * updates,
    )
    return (sizes[-1] - sizes[0]) / 2**20


def test_memory_does_not_grow(run):
    assert memory_growth(run, 200) < 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_updates_do_not_grow_memory(run):
    assert memory_growth(run, 10_000) < 20


def test_no_device_array_outlives_a_run(run):
    run()
    gc.collect()
    before = len(jax.live_arrays())
    run()
    gc.collect()
    assert len(jax.live_arrays()) <= before
