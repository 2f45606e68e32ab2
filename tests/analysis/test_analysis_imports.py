"""Analysis starts fast and runs anywhere: no jax, and matplotlib only where something is drawn."""

import subprocess
import sys

import pytest
from helpers.runs import REPO

BLOCK_MATPLOTLIB = "import sys; sys.modules['matplotlib'] = None"  # as if it were not installed


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, timeout=60)


@pytest.mark.parametrize(
    "module",
    [
        "cleanba.analysis.diff",
        "cleanba.analysis.report.make",
        "cleanba.cleanba_diff",
        "cleanba.cleanba_plot",
        "cleanba.cleanba_report",
    ],
)
def test_analysis_does_not_import_jax(module):
    child = run_python(
        f"import sys, {module}; print([m for m in ('jax', 'jaxlib', 'flax') if m in sys.modules])"
    )
    assert (child.returncode, child.stdout) == (0, "[]\n"), child.stderr


@pytest.mark.parametrize("command", ["report", "plot"])
def test_matplotlib_is_optional_until_something_is_drawn(command, tmp_path):
    main = f"{BLOCK_MATPLOTLIB}; from cleanba.cleanba_{command} import main"
    child = run_python(f"{main}; main(['--help'])")
    assert child.returncode == 0 and "--out" in child.stdout, child.stderr
    (tmp_path / "metrics.jsonl").touch()
    child = run_python(f"{main}; main([{str(tmp_path)!r}])")
    assert child.returncode == 2, child.stderr
    assert child.stderr == (
        f"error: a {command} needs matplotlib; install it with: pip install -e '{REPO}[plot]'\n"
    )
