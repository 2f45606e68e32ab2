"""Presets: what fits which machine."""

from dataclasses import replace

import jax
import pytest

from cleanba import cleanba_ppo_atari_fast, cleanba_ppo_fit
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.topology import Topology


@pytest.fixture
def fitting_args(monkeypatch):
    """On a machine with so many GPUs; those here are virtual ones."""

    def fitting_args(gpus):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:gpus])
        args = cleanba_ppo_fit.fitting_args()
        monkeypatch.undo()
        return args

    return fitting_args


@pytest.mark.parametrize(("gpus", "envs"), [(1, 128), (2, 128), (4, 126), (8, 126)])
def test_make_train_divides_over_all_gpus(fitting_args, gpus, envs):
    args = fitting_args(gpus)
    topology = Topology(args.actor_device_ids, args.learner_device_ids)
    assert set(topology.actor_ids + topology.learner_ids) == set(range(gpus))
    plan = BatchPlan.create(args, topology)
    assert plan.num_envs == envs and plan.envs_per_learner * plan.learners == envs
    assert plan.env_batch < envs  # acting does not wait for the slowest environment


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_make_train_learns_on_all_gpus(fitting_args, run, gpus):
    args = replace(fitting_args(gpus), env_id="CartPole-v1", num_steps=4, total_timesteps=2 * 4 * 128)
    _, rows = run(**{k: v for k, v in vars(args).items() if k not in ("runs_dir", "hiddens", "env_threads")})
    assert len(rows) == 2


def test_make_train_on_a_gpu_is_the_fast_preset_but_for_the_layout(fitting_args):
    fast, fit = vars(cleanba_ppo_atari_fast.ARGS), vars(fitting_args(4))
    layout = {"local_num_envs", "learner_device_ids", "exp_name", "total_timesteps"}
    assert {name for name in fast if fast[name] != fit[name]} == layout | {"save_model"}


def test_make_train_on_a_cpu_needs_no_gpu():
    assert cleanba_ppo_fit.fitting_args() == cleanba_ppo_fit.ON_CPU
    assert cleanba_ppo_fit.ON_CPU.save_model  # there is something to evaluate afterwards


def test_make_trains_preset_is_refused_in_a_job(capsys):
    """It looks at the devices before the processes could connect."""
    with pytest.raises(SystemExit) as left:
        cleanba_ppo_fit.main(cleanba_ppo_fit.ARGS, argv=["--distributed"])
    assert left.value.code == 2
    assert "this preset fits one process to its machine; for several give another" in capsys.readouterr().err
