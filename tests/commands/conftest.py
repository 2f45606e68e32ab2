import shutil
import signal

import pytest
from helpers.runs import REPO


@pytest.fixture
def bare_machine(tmp_path, monkeypatch):
    """A machine without GPUs and SLURM, in an empty folder, with default signal handlers."""
    handlers = {
        number: signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "date", "flock", "od", "rm", "sleep", "touch"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
