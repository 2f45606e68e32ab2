import math

import pytest

from cleanba.cleanba_ppo import Args
from cleanba.config.batch_plan import BatchPlan, check_divides
from cleanba.config.errors import UsageError
from cleanba.config.flags import parse_args
from cleanba.config.topology import Topology

ONE = Topology((0,), (0,))


def plan(topology=ONE, **flags):
    return BatchPlan.create(Args(**flags), topology)


def test_the_sizes_of_a_default_run():
    sizes = plan()
    assert sizes.actors == 2
    assert sizes.num_envs == 128  # 2 threads x 64
    assert sizes.batch_size == 16_384  # 128 steps x 128 environments
    assert sizes.updates == 3_051  # 50,000,000 // 16,384
    assert sizes.inference_batch == 64
    assert (sizes.chunks, sizes.chunk_rows) == (16, 256)  # a minibatch has 16,384 / 4 = 4,096 rows


def test_a_learner_gets_its_share_of_every_actor():
    sizes = plan(Topology((0, 1), (2, 3, 4), 2), local_num_envs=60, num_actor_threads=1)
    assert sizes.num_envs == 2 * 2 * 60
    assert sizes.envs_per_learner == 2 * 60 // 3


@pytest.mark.parametrize(
    ("chunk_flags", "chunks", "rows"),
    [
        (dict(gradient_chunk=256), 8, 240),  # 1,920 rows: eight equal chunks, not seven of 256 and one of 128
        (dict(gradient_chunk=1_920), 1, 1_920),
        (dict(gradient_chunk=1_000_000), 1, 1_920),
        (dict(gradient_accumulation_steps=7), 7, 275),  # 7 x 275 = 1,925: five rows are padding
    ],
)
def test_chunks_are_as_equal_as_they_can_be(chunk_flags, chunks, rows):
    sizes = plan(local_num_envs=60, num_actor_threads=1, **chunk_flags)
    assert (sizes.chunks, sizes.chunk_rows) == (chunks, rows)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (dict(num_steps=0), "--num-steps 0 is too small"),
        (dict(local_num_envs=-4), "--local-num-envs -4 is too small"),
        (dict(learning_rate=math.nan), "--learning-rate nan is not finite"),
        (dict(learning_rate=0.0), "--learning-rate 0.0 is too small"),
        (dict(max_grad_norm=math.inf), "--max-grad-norm inf is not finite"),
        (dict(gamma=1.01), "--gamma 1.01 is out of range; give a number from 0 to 1"),
        (dict(gae_lambda=-0.1), "--gae-lambda -0.1 is out of range"),
        (dict(ent_coef=-0.01), "--ent-coef -0.01 is negative"),
        (dict(target_kl=0.0), "--target-kl 0.0 is too small"),
        (dict(channels=(16, 0)), "--channels 0 is too small"),
        (dict(hiddens=()), "--hiddens is empty"),
        (dict(seed=-1), "--seed -1 is out of range; give a number from 0 to 4294967295"),
        (dict(seed=2**32), "--seed 4294967296 is out of range"),
        (dict(inference_batch=48), "--inference-batch 48 does not divide --local-num-envs 64; try 32 or 64"),
        (dict(total_timesteps=16_383), "--total-timesteps 16383 is less than one update.*at least 16384"),
        (dict(num_minibatches=20_000), "--num-minibatches 20000 is too many .* at most 16384"),
        (dict(gradient_accumulation_steps=4_097), "--gradient-accumulation-steps 4097 .* at most 4096"),
    ],
)
def test_sizes_that_cannot_work_are_refused_by_name(flags, message):
    with pytest.raises(UsageError, match=message):
        plan(**flags)


def test_environments_that_do_not_divide_are_refused_with_the_nearest_that_do():
    with pytest.raises(UsageError, match="--local-num-envs 64 cannot be split over 3 learners.*try 63 or 66"):
        plan(Topology((0,), (1, 2, 3)))


@pytest.mark.parametrize(
    ("flags", "inference_batch", "env_batch"),
    [
        (dict(), 64, 64),  # lag 0: in sync, all at once
        (dict(concurrency=True), 32, 32),  # lag 1: half of them, as they are ready
        (dict(concurrency=True, env_stepping="sync"), 64, 64),
        (dict(env_stepping="async"), 32, 32),
        (dict(env_stepping="sync", inference_batch=16), 16, 64),
        (dict(concurrency=True, inference_batch=16), 16, 16),
        (dict(concurrency=True, local_num_envs=63), 21, 21),
        (dict(concurrency=True, local_num_envs=7), 7, 7),
        (dict(concurrency=True, local_num_envs=1), 1, 1),
    ],
)
def test_how_environments_are_stepped_by_default(flags, inference_batch, env_batch):
    made = plan(**flags)
    assert (made.inference_batch, made.env_batch) == (inference_batch, env_batch)


def test_zero_is_never_suggested():
    with pytest.raises(UsageError, match="try 8$"):
        check_divides("--local-num-envs", 4, 8, "over 8 learners")


def test_coefficients_may_be_zero():
    plan(ent_coef=0.0, vf_coef=0.0, seed=0, gamma=0.0, gae_lambda=1.0)


def parse(*argv, default=None):
    return parse_args(default or Args(), prog="test", description="", argv=list(argv))


def test_flags_are_laid_over_the_defaults():
    args = parse("--seed", "7", "--learner-device-ids", "1", "2", "--no-norm-adv", default=Args(gamma=0.5))
    assert args == Args(seed=7, learner_device_ids=(1, 2), norm_adv=False, gamma=0.5)


def test_the_two_chunk_flags_exclude_each_other():
    with pytest.raises(UsageError, match="--gradient-accumulation-steps and --gradient-chunk exclude each"):
        parse("--gradient-chunk", "256", "--gradient-accumulation-steps", "2")
