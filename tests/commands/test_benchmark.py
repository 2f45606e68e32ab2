"""`python -m cleanrl_utils.benchmark` on this machine."""

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.benchmark_command import MODULE, TEMPLATE, files, main, make_executable, wait_for
from helpers.full_disk import FULL, open_full

pytestmark = pytest.mark.usefixtures("bare_machine")


def test_importing_it_does_not_import_jax():
    """So that it starts at once, on login nodes too."""
    script = "import sys, cleanrl_utils.benchmark; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_every_environment_and_seed_is_run_and_logged():
    code, out, err = main(
        "--env-ids", "A", "B", "--command", "echo hello", "--num-seeds", 2, "--start-seed", 5
    )
    assert (code, err) == (0, "")
    assert set(files("done")) == {"A__5", "A__6", "B__5", "B__6"}
    for name, log in files("log").items():
        env_id, seed = name.split("__")
        assert log.read_text().splitlines()[1:] == [f"hello --env-id {env_id} --seed {seed}"]
    assert [path.read_text() for path in Path("runs/benchmark").glob("*/command.txt")] == ["echo hello\n"]
    assert out.splitlines()[0].startswith("runs: 4 waiting; logs in runs/benchmark/")
    assert out.splitlines()[-1] == "runs: 4 done"
    assert re.search(r"^done +runs/benchmark/\w+/A__5\.log 0:00:0\d, exit code 0$", out, re.MULTILINE)


def test_the_command_is_shell_text_and_environment_ids_are_quoted():
    command = """X='a b' && python() { printf '<%s>' "$@"; } && python "$X" """
    code, _, err = main("--env-ids", "ALE/My $Game;-v5", "--command", command, "--num-seeds", 1)
    assert (code, err) == (0, "")
    assert (
        files("log")["ALE_My $Game;-v5__1"]
        .read_text()
        .endswith("<a b><--env-id><ALE/My $Game;-v5><--seed><1>")
    )


def test_a_failed_run_does_not_stop_others_and_only_it_is_repeated():
    command = "run() { echo tried; test $2 != B || test -e fixed; }; run"
    argv = ["--env-ids", "A", "B", "C", "--command", command, "--num-seeds", 1]
    code, out, err = main(*argv)
    assert code == 1
    assert set(files("done")) == {"A__1", "C__1"}
    first, second = err.splitlines()
    assert first == "error: 1 of 3 runs failed:"
    assert re.fullmatch(rf"  {files('log')['B__1']} \(0:00:0\d, exit code 1\)", second)
    assert out.splitlines()[-1] == "runs: 1 failed, 2 done"

    Path("fixed").touch()
    code, out, _ = main(*argv)
    assert code == 0 and "A__1" not in out
    assert set(files("done")) == {"A__1", "B__1", "C__1"}
    attempts = {name: log.read_text().splitlines().count("tried") for name, log in files("log").items()}
    assert attempts == {"A__1": 1, "B__1": 2, "C__1": 1}  # the log of the first attempt is kept

    assert main(*argv)[:2] == (0, f"runs: 3 done; logs in {files('log')['B__1'].parent}\n")


def test_logs_are_for_their_owner_and_do_not_repeat_tokens():
    assert main("--env-ids", "A", "--command", "HF_TOKEN=hf_x true", "--num-seeds", 1)[0] == 0
    log = files("log")["A__1"]
    assert log.stat().st_mode & 0o777 == 0o600
    assert "HF_TOKEN=*** true --env-id A" in log.read_text() and "hf_x" not in log.read_text()


def test_a_full_disk_under_the_logs_stops_no_run():
    open_full().close()
    main("--env-ids", "A", "--num-seeds", 1, "--command", "false #")
    log = files("log")["A__1"]
    log.unlink()
    log.symlink_to(FULL)
    code, out, errors = main("--env-ids", "A", "--num-seeds", 1, "--command", "false #")
    assert (code, errors.splitlines()[0]) == (1, "error: 1 of 1 runs failed:") and "exit code 1" in errors


def test_each_command_has_its_own_folder():
    for command in ("echo one", "echo two"):
        assert main("--env-ids", "A", "--command", command, "--num-seeds", 1)[0] == 0
    assert len(list(Path("runs/benchmark").glob("*/A__1.done"))) == 2


def test_a_run_killed_by_a_signal_has_failed():
    code, _, err = main("--env-ids", "A", "--command", "kill -9 $$ #", "--num-seeds", 1)
    assert code == 1 and "signal 9" in err
    assert not files("done")


def test_as_many_runs_at_a_time_as_workers():
    command = "echo $EPOCHREALTIME; sleep 0.4; echo $EPOCHREALTIME; :"
    code, *_ = main("--env-ids", *"ABCD", "--command", command, "--num-seeds", 1, "--workers", 2)
    assert code == 0
    times = [list(map(float, log.read_text().splitlines()[1:])) for log in files("log").values()]
    assert max(sum(begin <= moment < end for begin, end in times) for moment, _ in times) == 2


@pytest.mark.parametrize(
    ("visible", "workers", "shares"),
    [
        ("4,5,6,7", 2, {"4,5", "6,7"}),
        ("4,5,6", 2, {"4", "5"}),
        ("GPU-aa,GPU-bb", 1, {"GPU-aa,GPU-bb"}),
        ("-1", 2, {"-1"}),
        ("", 2, {""}),
        (None, 2, {"0", "1"}),  # from nvidia-smi
    ],
)
def test_parallel_runs_get_disjoint_gpus(visible, workers, shares, monkeypatch):
    if visible is None:
        make_executable("nvidia-smi", "echo 'GPU 0: H200 (UUID: GPU-a)'; echo 'GPU 1: H200 (UUID: GPU-b)'")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    argv = ["--env-ids", "A", "B", "C", "--num-seeds", 1, "--workers", workers]
    assert main(*argv, "--command", "echo GPUs=$CUDA_VISIBLE_DEVICES; :")[0] == 0
    lines = [log.read_text().splitlines()[1] for log in files("log").values()]
    assert {line.removeprefix("GPUs=") for line in lines} == shares


def test_without_gpus_cuda_visible_devices_is_not_set():
    assert main("--env-ids", "A", "--num-seeds", 1, "--command", "echo ${CUDA_VISIBLE_DEVICES-unset}")[0] == 0
    assert files("log")["A__1"].read_text().splitlines()[1].startswith("unset")


def test_no_two_runs_share_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    command = "(set -C; : > gpu$CUDA_VISIBLE_DEVICES) || exit 1; sleep 0.1; rm gpu$CUDA_VISIBLE_DEVICES; echo"
    code, *_ = main("--env-ids", *"ABCDEF", "--num-seeds", 1, "--workers", 2, "--command", command)
    assert code == 0


def test_workers_0_prints_incomplete_runs_and_starts_nothing():
    argv = ["--env-ids", "A", "B c", "--command", "echo $((1 + 1))", "--num-seeds", 2, "--workers", 0]
    code, out, err = main(*argv)
    assert code == 0 and err.startswith("runs: 4 waiting")
    assert not Path("runs").exists()
    pasted = subprocess.run(["bash"], input=out, capture_output=True, text=True).stdout
    assert pasted.splitlines() == [
        "2 --env-id A --seed 1",
        "2 --env-id B c --seed 1",
        "2 --env-id A --seed 2",
        "2 --env-id B c --seed 2",
    ]
    assert main(*argv[:-3], 1)[0] == 0  # seed 1
    assert main(*argv)[1].splitlines() == [
        "echo $((1 + 1)) --env-id A --seed 2",
        "echo $((1 + 1)) --env-id 'B c' --seed 2",
    ]


def test_a_benchmark_started_twice_shares_the_work():
    command = "run() { echo once; test $2 = A || touch go; until test -e go; do sleep 0.01; done; }; run"
    argv = ["--command", command, "--num-seeds", "1"]
    first = subprocess.Popen([*MODULE, *argv, "--env-ids", "A"], stdout=subprocess.DEVNULL)
    wait_for(lambda: "A__1" in files("log") and files("log")["A__1"].read_text().endswith("once\n"))
    code, out, _ = main(*argv, "--env-ids", "A", "B")
    assert code == 1  # not all runs are complete
    assert f"elsewhere {files('log')['A__1']} already running" in out
    assert first.wait(20) == 0
    assert set(files("done")) == {"A__1", "B__1"}
    assert files("log")["A__1"].read_text().splitlines().count("once") == 1


def test_a_terminal_gets_a_live_table():
    leader, follower = pty.openpty()
    command = "run() { sleep 0.4; test $2 = A; }; run"
    process = subprocess.Popen(
        [*MODULE, "--env-ids", "A", "B", "--command", command, "--num-seeds", "1"],
        stdout=follower,
        stderr=follower,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(follower)
    seen = b""
    with contextlib.suppress(OSError):  # a terminal whose other side is closed
        while chunk := os.read(leader, 4096):
            seen += chunk
    os.close(leader)
    assert process.wait(20) == 1
    text = re.sub(r"\x1b\[[?\d;]*\w", "", seen.decode())
    assert "runs: 1 running, 1 waiting" in text and "runs: 1 failed, 1 done" in text
    assert re.search(r"│ A +│ 1 +│ running │ 0:00:0\d", text)
    assert re.search(r"│ B +│ 1 +│ failed +│ 0:00:0\d, exit code 1", text)
    assert "error: 1 of 2 runs failed:" in text and "B__1.log" in text


# -------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--env-ids", "--env-ids is empty; name at least one environment"),
        ("--env-ids A A", "--env-ids names A twice"),
        ("--command=", "--command is empty"),
        ("--command='", "--command is not valid shell; fix its syntax: bash: "),
        ("--num-seeds 0", "--num-seeds 0 is too small; give 1 or more"),
        ("--start-seed -1", "--start-seed -1 is too small; give 0 or more"),
        ("--workers -1", "--workers -1 is too small; give 0 or more"),
        ("--workers 3", "--workers 3 is more than the 2 GPUs; give at most 2"),
        (
            "--log-dir /proc/nowhere",
            "--log-dir /proc/nowhere: No such file or directory; give another folder",
        ),
        ("--slurm-template-path nowhere", "--slurm-template-path nowhere is not a file; give e.g. cleanba."),
        (f"--slurm-template-path {TEMPLATE}", "--slurm-template-path: no sbatch on the PATH"),
        ("--slurm-ntasks 2", "--slurm-ntasks needs --slurm-template-path"),
        (f"--slurm-template-path {TEMPLATE} --slurm-ntasks 0", "--slurm-ntasks 0 is too small"),
        (f"--slurm-template-path {TEMPLATE} --slurm-nodes 0", "--slurm-nodes 0 is too small"),
        (
            f"--slurm-template-path {TEMPLATE} --slurm-gpus-per-task -1",
            "--slurm-gpus-per-task -1 is too small",
        ),
        (
            f"--slurm-template-path {TEMPLATE} --slurm-ntasks 4 --slurm-total-cpus 6",
            "--slurm-total-cpus 6 is not a multiple of --slurm-ntasks 4",
        ),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(flags, message, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    code, out, err = main("--env-ids", "A", "--command", "echo", *flags.split(" "))
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ") and message in line
    assert not Path("runs").exists()


@pytest.mark.parametrize("flags", ["--env-ids A", "--command echo", "--env-ids A --command echo --workers x"])
def test_flags_that_cannot_be_parsed_are_refused(flags):
    assert main(*flags.split())[0] == 2
