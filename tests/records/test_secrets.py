"""Tokens and passwords in the environment stay there."""

import pytest
from helpers.runs import SMALL, run_python
from helpers.wandb_files import offline

SECRETS = {
    "WANDB_API_KEY": "k" * 36 + "wxyz",
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "AWS_SECRET_ACCESS_KEY": "s3cr3t-s3cr3t",
    "HTTPS_PROXY": "http://somebody:pa55word@127.0.0.1:9",
}
LEAKING = """
import os, sys
from cleanba import cleanba_ppo
from cleanba.envs.envpool import Envs

receive, calls = Envs.receive, 0

def leak(self):
    global calls
    calls += 1
    if calls > LAST_CALL:
        raise RuntimeError(" ".join(os.environ[name] for name in NAMES))
    return receive(self)

Envs.receive = leak
cleanba_ppo.main(argv=sys.argv[1:])
""".replace("NAMES", str(list(SECRETS)))


@pytest.mark.parametrize("calls", [40, 80], ids=["training", "evaluation"])
def test_secrets_reach_neither_the_run_folder_nor_the_output(tmp_path, calls):
    """Even when an exception has them in its message."""
    flags = ["--total-timesteps", "320", "--checkpoint-minutes", "1e-9", "--track", "--save-model"]
    script = LEAKING.replace("LAST_CALL", str(calls))
    failed = run_python(tmp_path, "-c", script, *SMALL, *flags, **offline(tmp_path) | SECRETS)
    assert "(the value of HF_TOKEN)" in failed.stderr, failed.stderr
    output = failed.stdout + failed.stderr
    left = {path: path.read_bytes() for path in tmp_path.glob("runs/**/*") if path.is_file()}
    assert {".safetensors", ".wandb", ".cleanrl_model"} <= {path.suffix for path in left}
    for secret in ("k" * 36, *SECRETS.values(), "pa55word"):
        assert secret not in output
        assert not [path for path, data in left.items() if secret.encode() in data], secret
