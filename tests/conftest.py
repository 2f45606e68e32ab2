"""Eight virtual CPU devices for every test, as with JAX_NUM_CPU_DEVICES=8 in front of a command."""

import os
import tempfile

os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"
# Most of a small run is compilation, and many tests compile the same programs, also in other processes.
os.environ["JAX_COMPILATION_CACHE_DIR"] = (
    os.environ["JAX_COMPILATION_CACHE_DIR"]  # that of the process that has started the workers
    if "PYTEST_XDIST_WORKER" in os.environ
    else tempfile.mkdtemp(prefix="cleanba-tests-")
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import shutil
from functools import wraps
from typing import Any

import pytest
from helpers import chromium as chromium_browser
from helpers import leftovers
from helpers import slurm as slurm_cluster
from helpers.runs import read_rows

from cleanba import cleanba_ppo
from cleanba.records.outcome import Outcome
from cleanba.training.train import train


def pytest_configure() -> None:
    leftovers.adopt_orphans()
    leftovers.give_children_default_signals()


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    """Whatever a test starts is dead when the test is over, passed or failed."""
    before = leftovers.children()
    yield
    left = leftovers.still_running(before, seconds=1)
    leftovers.kill_new_children(before)
    assert not left, f"the test has left processes running: {left}"


@pytest.fixture
def run(tmp_path):
    """Train in this process with small sizes; flags and parts of the algorithm can be replaced."""

    def run(
        parts: dict[str, Any] | None = None, *, algorithm: Any = cleanba_ppo, **flags: Any
    ) -> tuple[Outcome, list[dict[str, Any]]]:
        small: dict[str, Any] = dict(
            env_id="CartPole-v1",
            runs_dir=str(tmp_path),
            local_num_envs=4,
            num_actor_threads=1,
            num_steps=16,
            total_timesteps=5 * 16 * 4,
            hiddens=(16,),
            env_threads=2,
        )
        outcome = train(
            algorithm.Args(**(small | flags)),
            wraps(algorithm.make_algorithm)(
                lambda *inputs: algorithm.make_algorithm(*inputs)._replace(**(parts or {}))
            ),
        )
        return outcome, read_rows(outcome.run_dir)

    return run


@pytest.fixture(scope="session")
def slurm():
    """A real SLURM, installed where it is missing."""
    if reason := slurm_cluster.why_not_here():
        pytest.skip(reason)
    slurm_cluster.install()
    with slurm_cluster.start() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def chromium_installed():
    if reason := chromium_browser.why_not_here():
        pytest.skip(reason)
    chromium_browser.install()


@pytest.fixture
def chromium(chromium_installed):
    """A real browser, installed where it is missing; for one test, since asyncio is not free meanwhile."""
    with chromium_browser.browser() as browser:
        yield browser
