"""What commands say before they end."""

import pytest

from cleanba.config.errors import UsageError
from cleanba.runtime import command


@pytest.mark.parametrize("is_checkout", [False, True])
def test_a_missing_extra_is_installed_as_cleanba_was(tmp_path, monkeypatch, is_checkout):
    """From a wheel by its name, from a checkout by its folder."""
    monkeypatch.setattr(command, "CHECKOUT", tmp_path)
    if is_checkout:
        (tmp_path / "pyproject.toml").touch()
    with pytest.raises(UsageError) as refusal:
        command.need_extra("a plot", "no_such_module", "plot")
    what = f"-e '{tmp_path}[plot]'" if is_checkout else "'cleanba[plot]'"
    assert str(refusal.value) == f"a plot needs no_such_module; install it with: pip install {what}"


def test_an_extra_that_is_there_is_no_problem():
    command.need_extra("a plot", "json", "plot")
