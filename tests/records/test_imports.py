"""What a module does not import: readers of runs start fast, and layers stay apart."""

import pytest
from helpers.runs import REPO, run_python


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("cleanba.records.run_folder", {"jax", "tensorboardX"}),
        ("cleanba.records.row", {"jax", "tensorboardX"}),
        ("cleanba.sebulba.actor", {"tensorboardX"}),
        ("cleanba.agents.networks", {"envpool"}),
    ],
)
def test_a_module_does_not_import(module, absent):
    script = f"import sys, {module}; print(sorted({absent} & sys.modules.keys()))"
    done = run_python(REPO, "-c", script)
    assert done.stdout == "[]\n", done.stderr
