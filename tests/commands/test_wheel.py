"""The package as pip installs it, far from the checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers.runs import REPO, SMALL, read_rows


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "-q",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", folder, REPO], check=True)
    (path,) = folder.glob("cleanba-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A function that runs a program of a new environment, in an empty folder, and returns its output.

    pip installs only the wheel there. To download nothing, what it depends on comes from the environment of
    the tests, through a .pth file: that adds its packages, but not the link by which it has this checkout. So
    a dependency that pyproject.toml does not name is not noticed.
    """
    env, folder = tmp_path_factory.mktemp("env"), tmp_path_factory.mktemp("empty")
    venv.create(env, with_pip=False, symlinks=True)
    python = env / "bin/python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    (site_packages,) = env.glob("lib/python*/site-packages")
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "dependencies.pth").write_text("\n".join(sorted(paths)))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program: str, *argv: str) -> str:
        command = [str(env / "bin" / program), *argv]
        done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run.folder, run.env = folder, env  # type: ignore[attr-defined]
    return run


def test_the_wheel_has_every_file_of_the_packages(wheel):
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        path.relative_to(REPO).as_posix()
        for package in ("cleanba", "cleanrl_utils")
        for path in (REPO / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names == files
    assert {"cleanrl_utils/cleanba.slurm_template", "cleanba/analysis/report/page.html"} <= names


def test_the_wheel_has_the_license_and_says_what_it_needs(wheel):
    with ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
        assert (
            archive.read(metadata.replace("METADATA", "licenses/LICENSE")) == (REPO / "LICENSE").read_bytes()
        )
    assert "License-Expression: MIT" in lines and "Requires-Python: >=3.11,<3.15" in lines
    assert "Requires-Dist: envpool (==1.2.0)" in lines


def test_the_commands_of_the_installed_package(installed):
    where = installed("python", "-c", "import cleanba; print(cleanba.__file__)")
    assert Path(where.strip()).is_relative_to(installed.env)
    assert "ppo" in installed("cleanba", "--help")
    flags = "--env-ids A --command echo --workers 0 --slurm-template-path cleanba.slurm_template"
    assert "#SBATCH --array=0-2" in installed("python", "-m", "cleanrl_utils.benchmark", *flags.split())


@pytest.mark.slow
def test_training_in_an_empty_folder_and_what_follows(installed):
    installed("cleanba", "ppo", *SMALL, "--total-timesteps", "128", "--save-model")
    (run_dir,) = (installed.folder / "runs").iterdir()
    assert [row["global_step"] for row in read_rows(run_dir)][:2] == [64, 128]
    assert "return" in installed("cleanba", "eval", str(run_dir), "--episodes", "2")
    installed("cleanba", "report", "runs", "--out", "report")
    page = (installed.folder / "report/index.html").read_text()
    css = (REPO / "cleanba/analysis/report/page.css").read_text()
    assert css.strip().splitlines()[0] in page
