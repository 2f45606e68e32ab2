import json
import os
import subprocess
import sys

import pytest
from conftest import REPO

from cleanba.sebulba.determinism import cpu_model, make_deterministic

OURS = "--xla_gpu_deterministic_ops=true"


@pytest.mark.parametrize(
    ("theirs", "together"),
    [
        (None, OURS),
        ("--xla_dump_to=/tmp/x", f"--xla_dump_to=/tmp/x {OURS}"),
        ("--xla_gpu_deterministic_ops=false", "--xla_gpu_deterministic_ops=false"),
        (OURS, OURS),
        ("--xla_gpu_deterministic_ops_of_mine", f"--xla_gpu_deterministic_ops_of_mine {OURS}"),
    ],
)
def test_the_users_flags_stay_and_count(monkeypatch, theirs, together):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if theirs:
        monkeypatch.setenv("XLA_FLAGS", theirs)
    make_deterministic()
    assert os.environ["XLA_FLAGS"] == together


SMALL = "--env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 16 --total-timesteps 64"


@pytest.mark.parametrize(("flags", "xla_flags"), [([], OURS), (["--no-deterministic"], "")])
def test_a_run_sets_the_flags_before_jax_starts_and_records_what_its_bits_depend_on(
    tmp_path, flags, xla_flags
):
    script = (
        "import os\n"
        "from jax._src import xla_bridge\n"
        "from cleanba import cleanba_ppo\n"
        "from cleanba.sebulba import train\n"
        "set_flags = train.make_deterministic\n"
        "def checked():\n"
        "    assert not xla_bridge.backends_are_initialized()\n"
        "    set_flags()\n"
        "train.make_deterministic = checked\n"
        "cleanba_ppo.main()\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-c", script, *SMALL.split(), *flags]
    subprocess.run(command, cwd=tmp_path, env=env | {"PYTHONPATH": str(REPO)}, check=True, timeout=100)
    (run_dir,) = (tmp_path / "runs").iterdir()
    record = json.loads((run_dir / "args.json").read_text())
    machine = record["machine"]
    assert machine["xla_flags"] == xla_flags
    assert machine["cores"] == len(os.sched_getaffinity(0)) and machine["cpu"] == cpu_model()
    assert {"jax", "jaxlib", "envpool", "actor_devices", "learner_devices", "runtime"} <= machine.keys()
    assert {"default_matmul_precision", "default_prng_impl", "xla_threads"} <= machine.keys()
    assert {"inference_batch", "chunks", "chunk_rows"} <= record["plan"].keys()
    assert record["args"]["deterministic"] == (not flags)
