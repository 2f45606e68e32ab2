"""Eight virtual CPU devices for every test, as with JAX_NUM_CPU_DEVICES=8 in front of a command."""

import os
import random
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
from helpers import slurm as slurm_cluster
from helpers.leftovers import nothing_is_left_running, pytest_configure  # noqa: F401
from helpers.runs import read_rows

from cleanba import cleanba_ppo
from cleanba.records.outcome import Outcome
from cleanba.training.train import train


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run files, and tests in files, in random order"
    )


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A worker gets whole files: their tests share fixtures and compiled programs. Those that install Debian
    packages or have daemons go to one worker."""
    if (seed := config.getoption("shuffle")) is not None:
        random.Random(seed).shuffle(items)
        places = {path: n for n, path in enumerate(dict.fromkeys(item.path for item in items))}
        items.sort(key=lambda item: places[item.path])
    for item in items:
        uses_debian = {"slurm", "chromium"} & set(getattr(item, "fixturenames", ()))
        item.add_marker(pytest.mark.xdist_group("debian" if uses_debian else str(item.path)))


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
