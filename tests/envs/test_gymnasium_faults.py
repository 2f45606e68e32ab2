"""Environments that go wrong in their worker processes: one clear line, and nothing is left running."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager

import gymnasium
import numpy as np
import psutil
import pytest
from helpers.full_disk import open_full
from helpers.leftovers import children, still_running
from helpers.own_envs import Cue
from helpers.runs import REPO

from cleanba.cleanba_ppo import Args
from cleanba.config.errors import EnvError, UsageError
from cleanba.envs.factory import env_spec, make_envs
from cleanba.envs.gymnasium_envs import default_options, register
from cleanba.envs.seeding import env_seeds
from cleanba.envs.shared_rows import BadObservation, ObsWriter
from cleanba.envs.worker import MAX_REPORT

ELSEWHERE = {"PYTHONPATH": f"{REPO}:{REPO / 'tests'}", "JAX_NUM_CPU_DEVICES": "1"}
PREFIX = "environment 1 of helpers.own_envs:Faulty-v0 "


def faulty(fault, seeds=(2, 3, 4), threads=2):
    env = env_spec(Args(env_id="helpers.own_envs:Faulty-v0", env_options=f'{{"fault": "{fault}"}}'))
    return closing(make_envs(env, seeds, threads))


def play(envs, steps=10):
    envs.reset()
    play_on(envs, steps)


def play_on(envs, steps=10):
    for _ in range(steps):
        step = envs.receive()
        envs.send(np.zeros(len(step.env), np.int32), step.env)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raises", "failed while taking a step\n(?s:.*)own_envs.py(?s:.*)ValueError: a bad step"),
        ("raises in reset", "failed while being reset\n(?s:.*)ValueError: a bad start"),
        ("leaves", "failed while taking a step\n(?s:.*)SystemExit: 3"),
        ("is killed", "has ended its worker process, which was killed by SIGKILL"),
        ("exits", "has ended its worker process, which exited with code 7"),
        ("forks and exits", "has ended its worker process, which exited with code 7"),
    ],
)
def test_a_failure_names_the_environment_and_ends_all(fault, says):
    before = children()
    with faulty(fault) as envs, pytest.raises(EnvError, match=PREFIX + says):
        play(envs)
    assert not still_running(before, seconds=10)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raises in render", "failed while being rendered\n(?s:.*)ValueError: a bad image"),
        ("is killed in render", "has ended its worker process, which was killed by SIGKILL"),
    ],
)
def test_a_failure_while_an_image_is_made_names_the_first_environment(fault, says):
    with faulty(fault) as envs:
        play(envs, steps=1)
        with pytest.raises(EnvError, match="environment 0 of helpers.own_envs:Faulty-v0 " + says):
            envs.render()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("other shape", r"gives observations \(2,\) float32, but its space says \(3,\) float32"),
        ("other dtype", r"gives observations \(3,\) complex64, but its space says \(3,\) float32"),
        ("NaN", r"gives observations that are not finite at its first steps: \[.*nan"),
    ],
)
def test_observations_that_do_not_fit_are_refused_at_the_first_step(fault, says):
    with faulty(fault, seeds=[1], threads=1) as envs, pytest.raises(EnvError, match=says):
        play(envs)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            "old reset",
            r"returns only one value, of type ndarray, from reset; it must `return obs",
        ),
        ("four values", r"returns 4 values from step; it must `return observation, reward, terminated, "),
        ("None", r"returns nothing \(None\) from step; it must `return observation, reward"),
        ("reward", r"returns the reward 'much', which is no number"),
    ],
)
@pytest.mark.parametrize("limit", ["", ', "max_episode_steps": 9, "action_repeat": 2'])
def test_what_is_not_gymnasiums_api_is_said_in_one_line(fault, says, limit):
    """Also where wrappers unpack it."""
    env = env_spec(Args(env_id="helpers.own_envs:Careless-v0", env_options=f'{{"fault": "{fault}"{limit}}}'))
    with (
        closing(make_envs(env, [1], 1)) as envs,
        pytest.raises(EnvError, match=r"^environment 0 of helpers.own_envs:Careless-v0 " + says) as raised,
    ):
        play(envs)
    assert "\n" not in str(raised.value)


def test_an_entry_that_is_missing_in_an_observation_is_named():
    rows = {f"obs/{name}": np.zeros((1, 2), np.float32) for name in ("letter", "map")}
    space = gymnasium.spaces.Dict({name: gymnasium.spaces.Box(0, 1, (2,)) for name in ("letter", "map")})
    writer, part = ObsWriter(space, rows), np.zeros(2, np.float32)
    with pytest.raises(BadObservation, match="that has no entry 'letter'; its space has letter, map"):
        writer.write(0, {"map": part}, check_numbers=True)
    with pytest.raises(BadObservation, match=r"\(ndarray, not a dict\) that has no entry 'letter'"):
        writer.write(0, part, check_numbers=True)


@pytest.mark.timeout(30)  # a worker whose report fills the pipe would wait forever
def test_a_report_is_cut_to_what_fits_into_a_pipe():
    env = env_spec(Args(env_id="helpers.own_envs:Careless-v0", env_options='{"fault": "long reward"}'))
    with closing(make_envs(env, [1], 1)) as envs, pytest.raises(EnvError, match="the reward 'much") as raised:
        play(envs)
    assert len(raised.value.what) == MAX_REPORT


def test_a_worker_that_somebody_kills_is_noticed_while_idle():
    """It is named by the first of its environments: the second worker has 4 to 7."""
    before = children()
    with faulty("", seeds=range(8)) as envs:
        play(envs, steps=1)
        envs.receive()
        os.kill(max(children() - before), signal.SIGKILL)
        with pytest.raises(
            EnvError, match=r"^environment 4 of .* has lost its worker process.*killed by SIGKILL"
        ):
            envs.receive()  # nothing was sent, so nothing else can come


@pytest.mark.timeout(60)
def test_an_evaluation_names_one_that_hangs():
    """No watchdog looks after it."""
    env = env_spec(Args(env_id="helpers.own_envs:Faulty-v0", env_options='{"fault": "hangs"}'))
    hangs = pytest.raises(EnvError, match=PREFIX + "has been in the middle of a step for 2 s")
    with closing(make_envs(env, [2, 3, 4], 2, patience=60)) as envs:
        play(envs, steps=1)
        envs._workers._patience = 2
        with hangs:
            play_on(envs)


@pytest.mark.parametrize("patience", [0.5e-3 + 60, 1e12])
def test_patience_has_no_upper_limit(patience):
    env = env_spec(Args(env_id="helpers.own_envs:Cue-v0"))
    with closing(make_envs(env, [2, 3], 1, patience=patience)) as envs:
        play(envs)


def test_a_worker_that_hangs_is_ended_with_the_run():
    before = children()
    with faulty("hangs") as envs:
        envs.reset()
        for _ in range(3):
            envs.send(np.zeros(3, np.int32), envs.receive().env)
    assert not still_running(before, seconds=10)


def test_what_environments_print_goes_to_standard_error(capfd):
    with faulty("prints") as envs:
        play(envs, steps=5)
    out, err = capfd.readouterr()
    assert out == "" and err == "a line of the environment's own\n"


@contextmanager
def standard_error(descriptor):
    """Of what is started in the body."""
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@pytest.fixture(params=["full disk", "reader that does not read", "reader that has gone"])
def takes_nothing(request):
    """Where no output arrives."""
    if request.param == "full disk":
        with open_full() as full:
            yield full.fileno()
        return
    reading, writing = os.pipe()
    os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)))
    if request.param == "reader that has gone":
        os.close(reading)
        reading = os.open("/dev/null", os.O_RDONLY)
    yield writing
    os.close(writing)
    os.close(reading)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", ["prints", "forks and prints"])
def test_what_environments_print_stops_none_of_them(takes_nothing, fault):
    before = children()
    with standard_error(takes_nothing), faulty(fault) as envs:
        play(envs)
    assert not still_running(before, seconds=10)


def test_what_is_printed_while_the_spaces_are_looked_at_goes_to_standard_error(capfd):
    register("Talkative-v0", Talkative)
    env_spec(Args(env_id="Talkative-v0", env_backend="gymnasium"))
    assert capfd.readouterr() == ("", "made\n")


def test_what_a_module_prints_goes_to_standard_error(tmp_path, monkeypatch, capfd):
    """Both where it is named, and where only what is registered names it."""
    names = "import gymnasium; gymnasium.register('Printing-v0', entry_point='is_registered:Cue')"
    (tmp_path / "is_named.py").write_text(f"print('named'); {names}")
    (tmp_path / "is_registered.py").write_text("print('registered'); from helpers.own_envs import Cue")
    monkeypatch.syspath_prepend(tmp_path)
    assert default_options("is_named:Printing-v0")["delay"] == 0.0
    assert capfd.readouterr() == ("", "named\nregistered\n")


class Talkative(Cue):
    def __init__(self, **how):
        print("made")
        super().__init__(**how)


def test_what_an_environment_prints_before_it_crashes_arrives(capfd):
    with faulty("prints and exits") as envs, pytest.raises(EnvError, match="exited with code 7"):
        play(envs)
    assert "its last words\n" in capfd.readouterr().err


def test_without_standard_error_environments_are_stepped_all_the_same():
    before = children()
    kept = os.dup(2)
    os.close(2)
    try:
        with faulty("prints") as envs:
            play(envs, steps=5)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert not still_running(before, seconds=10)


def test_what_an_environment_and_its_copy_print_arrives(capfd):
    with faulty("forks and prints") as envs:
        play(envs, steps=5)
    assert capfd.readouterr().err == 2 * "a line of both\n"


@pytest.mark.parametrize("fault", ["forks", "a copy raises"])
def test_the_copy_that_an_environment_has_forked_ends(fault):
    """And says nothing, in place of the environment."""
    before = children()
    with faulty(fault, seeds=(3, 2, 4)) as envs:
        play(envs, steps=5)
        (worker,) = (p for p in map(psutil.Process, children() - before) if p.children())
        (copy,) = worker.children()
        deadline = time.monotonic() + 20
        while copy.status() != psutil.STATUS_ZOMBIE:  # it ends by itself, while its environment goes on
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert envs.render().shape == (32, 48, 3)
    assert not still_running(before, seconds=10)


def test_where_the_numbers_of_files_are_high_all_ends():
    """Beyond 1023, which is the last that `select` takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard) if hard > 0 else 2048, hard))
    before, opened = children(), []
    try:
        while not opened or opened[-1] < 1024:
            opened.append(os.open("/dev/null", os.O_RDONLY))
        with faulty("") as envs:
            play(envs, steps=1)
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not still_running(before, seconds=0)


def test_a_factory_that_cannot_be_pickled_is_refused():
    generator = (x for x in ())
    register("Unpicklable-v0", lambda: __import__("helpers.own_envs").own_envs.Cue(bool(generator) and 0.0))
    env = env_spec(Args(env_id="Unpicklable-v0", env_backend="gymnasium"))
    with pytest.raises(UsageError, match="Unpicklable-v0 cannot be sent to its worker processes"):
        make_envs(env, [1], 1)


def test_no_worker_outlives_a_process_that_is_killed():
    """Not even one that is busy."""
    program = """
import time
from cleanba.cleanba_ppo import Args
from cleanba.envs.factory import env_spec, make_envs
env = env_spec(Args(env_id="helpers.own_envs:Faulty-v0", env_options='{"fault": "hangs"}'))
envs = make_envs(env, [1, 2, 3], 2)
import numpy as np
envs.reset()
for _ in range(3):
    envs.send(np.zeros(3, np.int32), envs.receive().env)
print("stepping", flush=True)
time.sleep(1000)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=os.environ | ELSEWHERE,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"stepping\n"
        workers = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert len(workers) == 2 and not alive


def test_a_run_names_the_environment_by_its_number_among_all(run):
    """The only one of the second thread."""
    seed = next(seed for seed in range(100) if env_seeds(seed, [1])[0] % 2)
    flags = dict(env_options='{"fault": "raises"}', local_num_envs=1, num_actor_threads=2, seed=seed)
    with pytest.raises(EnvError, match=PREFIX + r"failed while taking a step\n(?s:.*)a bad step"):
        run(env_id="helpers.own_envs:Faulty-v0", **flags)


def test_a_run_that_hangs_names_the_environment(tmp_path):
    flags = ["--env-id", "helpers.own_envs:Faulty-v0", "--env-options", '{"fault": "hangs"}']
    flags += ["--local-num-envs", "2", "--num-actor-threads", "1", "--stuck-seconds", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "cleanba", "ppo", *flags],
        env=os.environ | ELSEWHERE,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    odd = env_seeds(1, range(2))[0] % 2 == 0
    assert done.returncode == 1
    assert "error: the run has made no progress for 5 s; environment " in done.stderr
    assert f"environment {int(odd)} of helpers.own_envs:Faulty-v0 is in the middle of a step" in done.stderr
