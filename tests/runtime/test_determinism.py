import json
import os
import runpy
import shutil
import subprocess
import sys

import jax
import pytest
from helpers.runs import REPO

from cleanba import cleanba_eval
from cleanba.config.errors import UsageError
from cleanba.runtime.determinism import make_deterministic
from cleanba.runtime.machine import cpu_model

OURS = "--xla_gpu_deterministic_ops=true"


@pytest.mark.parametrize(
    ("theirs", "together"),
    [
        (None, OURS),
        ("--xla_dump_to=/tmp/x", f"--xla_dump_to=/tmp/x {OURS}"),
        ("--xla_gpu_deterministic_ops=false", "--xla_gpu_deterministic_ops=false"),
        (OURS, OURS),
        ('--xla_dump_to="/a  b"', f'--xla_dump_to="/a  b" {OURS}'),
        ("--xla_gpu_deterministic_ops_of_mine", f"--xla_gpu_deterministic_ops_of_mine {OURS}"),
    ],
)
def test_the_users_flags_stay_and_count(monkeypatch, theirs, together):
    """As they are: there may be quotes in them."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if theirs:
        monkeypatch.setenv("XLA_FLAGS", theirs)
    make_deterministic()
    assert os.environ["XLA_FLAGS"] == together


def test_flags_in_a_file_cannot_be_added_to(monkeypatch, tmp_path):
    file = tmp_path / "flags"
    file.write_text("--xla_dump_to=/tmp/x")
    monkeypatch.setenv("XLA_FLAGS", str(file))
    with pytest.raises(UsageError, match="put --xla_gpu_deterministic_ops=true into it"):
        make_deterministic()
    file.write_text(f"--xla_dump_to=/tmp/x\n{OURS}\n")
    make_deterministic()
    assert os.environ["XLA_FLAGS"] == str(file)


@pytest.mark.parametrize("refused", [False, True])
def test_make_train_sets_the_flag_before_it_looks_for_devices(monkeypatch, refused):
    seen = []
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(jax, "default_backend", lambda: seen.append(os.environ.get("XLA_FLAGS")) or "cpu")
    monkeypatch.setattr(sys, "argv", ["fit", "--help", *["--no-deterministic"] * refused])
    with pytest.raises(SystemExit):
        runpy.run_path(str(REPO / "cleanba/cleanba_ppo_fit.py"), run_name="__main__")
    assert seen == [None if refused else OURS]


def test_an_evaluation_sets_the_flag(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with pytest.raises(SystemExit):
        cleanba_eval.main(["no-such-model"])
    assert os.environ["XLA_FLAGS"] == OURS


def test_without_determinism_no_flag_is_set(run, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    outcome, _ = run(total_timesteps=64, deterministic=False)
    assert json.loads((outcome.run_dir / "args.json").read_text())["machine"]["xla_flags"] == ""


# XLA reads its flags when jax first looks for devices.
CHECKED = """
from jax._src import xla_bridge
from cleanba import cleanba_ppo
from cleanba.training import train

set_flags = train.make_deterministic

def checked():
    assert not xla_bridge.backends_are_initialized()
    set_flags()

train.make_deterministic = checked
cleanba_ppo.main()
"""


def has_gpu():
    found = shutil.which("nvidia-smi")
    return bool(found) and "GPU 0" in subprocess.run([found, "-L"], capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("platform", "flags"),
    [
        pytest.param(
            "cpu",
            "--env-id CartPole-v1 --local-num-envs 4 --num-steps 16 --total-timesteps 1280",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "cuda",
            "--total-timesteps 81920 --num-steps 16",
            marks=[pytest.mark.slow, pytest.mark.skipif(not has_gpu(), reason="there is no GPU")],
        ),
        pytest.param(
            "cuda",
            "--total-timesteps 81920 --num-steps 16 --compute-dtype bfloat16",
            marks=[pytest.mark.slow, pytest.mark.skipif(not has_gpu(), reason="there is no GPU")],
        ),
    ],
    ids=["cpu", "gpu-float32", "gpu-bfloat16"],
)
def test_two_processes_that_compile_anew_are_the_same_run(tmp_path, platform, flags):
    """As a user would see it: the command twice, then `cleanba diff`."""
    left_out = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_NUM_CPU_DEVICES")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    env |= {"PYTHONPATH": str(REPO), "JAX_PLATFORMS": platform}
    for cache in ("one", "another"):
        command = [sys.executable, "-c", CHECKED, "--concurrency", *flags.split()]
        env["XDG_CACHE_HOME"] = str(tmp_path / cache)
        subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=200)
    runs = sorted((tmp_path / "runs").iterdir())
    diff = [sys.executable, "-c", "from cleanba.cli import main; main()", "diff", *runs]
    shown = subprocess.run(diff, env=env, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.splitlines()[2:] == [
        "all recorded circumstances are the same",
        "identical through update 10" if platform == "cpu" else "identical through update 40",
    ]
    record = json.loads((runs[0] / "args.json").read_text())
    machine = record["machine"]
    assert machine["xla_flags"] == OURS
    assert machine["cores"] == len(os.sched_getaffinity(0)) and machine["cpu"] == cpu_model()
    assert {"jax", "jaxlib", "envpool", "actor_devices", "learner_devices", "runtime"} <= machine.keys()
    assert {"default_matmul_precision", "default_prng_impl", "xla_threads"} <= machine.keys()
    assert {"inference_batch", "chunks", "chunk_rows"} <= record["parts"][0]["sizes"].keys()
