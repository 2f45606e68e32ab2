"""`python -m cleanrl_utils.benchmark`: runs on this machine, and the batch scripts that it gives to SLURM."""

import contextlib
import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import REPO

from cleanrl_utils import benchmark

TEMPLATE = REPO / "cleanba.slurm_template"
MODULE = [sys.executable, "-m", "cleanrl_utils.benchmark"]


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine without GPUs and SLURM, in an empty folder, with no signal ignored or handled."""
    handlers = {
        number: signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "date", "flock", "rm", "sleep", "touch"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def executable(name, text):
    path = Path("bin", name)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def main(*argv):
    """Exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit) as exit, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        benchmark.main(list(map(str, argv)))
    return exit.value.code, out.getvalue(), err.getvalue()


def files(suffix):
    return {path.stem: path for path in Path("runs/benchmark").glob(f"*/*.{suffix}")}


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


# -------------------------------------------------------------------------------------- on this machine


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


def test_a_failure_stops_nothing_else_and_only_it_is_repeated():
    command = "run() { echo tried; test $2 != B || test -e mended; }; run"
    argv = ["--env-ids", "A", "B", "C", "--command", command, "--num-seeds", 1]
    code, out, err = main(*argv)
    assert code == 1
    assert set(files("done")) == {"A__1", "C__1"}
    first, second = err.splitlines()
    assert first == "error: 1 of 3 runs failed:"
    assert re.fullmatch(rf"  {files('log')['B__1']} \(0:00:0\d, exit code 1\)", second)
    assert out.splitlines()[-1] == "runs: 1 failed, 2 done"

    Path("mended").touch()
    code, out, _ = main(*argv)
    assert code == 0 and "A__1" not in out
    assert set(files("done")) == {"A__1", "B__1", "C__1"}
    tries = {name: log.read_text().splitlines().count("tried") for name, log in files("log").items()}
    assert tries == {"A__1": 1, "B__1": 2, "C__1": 1}  # the log of the first attempt is kept

    assert main(*argv)[:2] == (0, f"runs: 3 done; logs in {files('log')['B__1'].parent}\n")


def test_another_command_has_its_own_records():
    for command in ("echo one", "echo two"):
        assert main("--env-ids", "A", "--command", command, "--num-seeds", 1)[0] == 0
    assert len(list(Path("runs/benchmark").glob("*/A__1.done"))) == 2


def test_a_run_ended_by_a_signal_has_failed():
    code, _, err = main("--env-ids", "A", "--command", "kill -9 $$ #", "--num-seeds", 1)
    assert code == 1 and "signal 9" in err
    assert not files("done")


def test_workers_run_at_a_time():
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
        executable("nvidia-smi", "echo 'GPU 0: H200 (UUID: GPU-a)'; echo 'GPU 1: H200 (UUID: GPU-b)'")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    argv = ["--env-ids", "A", "B", "C", "--num-seeds", 1, "--workers", workers]
    assert main(*argv, "--command", "echo GPUs=$CUDA_VISIBLE_DEVICES; :")[0] == 0
    lines = [log.read_text().splitlines()[1] for log in files("log").values()]
    assert {line.removeprefix("GPUs=") for line in lines} == shares


def test_without_gpus_nothing_is_set():
    assert main("--env-ids", "A", "--num-seeds", 1, "--command", "echo ${CUDA_VISIBLE_DEVICES-unset}")[0] == 0
    assert files("log")["A__1"].read_text().splitlines()[1].startswith("unset")


def test_a_share_of_the_gpus_has_one_run_at_a_time(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    command = "(set -C; : > gpu$CUDA_VISIBLE_DEVICES) || exit 1; sleep 0.1; rm gpu$CUDA_VISIBLE_DEVICES; echo"
    code, *_ = main("--env-ids", *"ABCDEF", "--num-seeds", 1, "--workers", 2, "--command", command)
    assert code == 0


def test_workers_0_prints_what_is_not_complete_and_starts_nothing():
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
    assert code == 1  # not everything is complete
    assert f"elsewhere {files('log')['A__1']} under way already" in out
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
    with contextlib.suppress(OSError):  # how a terminal says that the other side is closed
        while chunk := os.read(leader, 4096):
            seen += chunk
    os.close(leader)
    assert process.wait(20) == 1
    text = re.sub(r"\x1b\[[?\d;]*\w", "", seen.decode())
    assert "runs: 1 running, 1 waiting" in text and "runs: 1 failed, 1 done" in text
    assert re.search(r"│ A +│ 1 +│ running │ 0:00:0\d", text)
    assert re.search(r"│ B +│ 1 +│ failed +│ 0:00:0\d, exit code 1", text)
    assert "error: 1 of 2 runs failed:" in text and "B__1.log" in text


# ----------------------------------------------------------------------------------------------- Ctrl-C


def processes(mark):
    """The living processes with `mark` in their environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            if mark.encode() in environ.read_bytes():
                found.append(environ.parent)
    return found


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_ctrl_c_ends_all_runs_and_leaves_no_process(number, code):
    """The runs have children, also in the background."""
    mark = f"BENCHMARK_TEST={os.getpid()}.{time.time()}"
    command = "sleep 100 & touch under_way.$$; sleep 100; echo"
    argv = ["--env-ids", "A", "B", "C", "--num-seeds", "1", "--workers", "2", "--command", command]
    process = subprocess.Popen(
        ["env", mark, *MODULE, *argv], executable="/usr/bin/env", stdout=subprocess.PIPE, text=True
    )
    wait_for(lambda: len(list(Path().glob("under_way.*"))) == 2)
    assert len(processes(mark)) >= 5  # the benchmark, and of each run the shell and one or two others
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == code
    wait_for(lambda: not processes(mark))  # sooner than their 100 seconds
    assert not files("done")
    assert out.splitlines()[-1] == "runs: 2 stopped, 1 waiting"


def test_nohup_is_respected():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGHUP)).start()
    assert main("--env-ids", "A", "--num-seeds", 1, "--command", "sleep 0.4; echo")[0] == 0


def test_runs_may_save_their_state_when_the_benchmark_is_terminated():
    save = "trap 'sleep 0.2; echo saved; exit 75' TERM; touch under_way; while :; do sleep 0.01; done"
    argv = ["--env-ids", "A", "--num-seeds", "1", "--command", f"bash -c {shlex.quote(save)} && echo"]
    process = subprocess.Popen([*MODULE, *argv], stdout=subprocess.DEVNULL)
    wait_for(Path("under_way").exists)
    process.terminate()
    assert process.wait(20) == 143
    assert "saved" in files("log")["A__1"].read_text().splitlines()


@pytest.mark.parametrize("again", [False, True], ids=["after the grace time", "at the second Ctrl-C"])
def test_a_run_that_ignores_ctrl_c_is_killed(again, monkeypatch):
    monkeypatch.setattr(benchmark, "GRACE_SECONDS", 600 if again else 0.3)
    command = "trap '' INT; echo $$ > pid; while :; do sleep 0.01; done; echo"

    ended = threading.Event()

    def press():
        wait_for(Path("pid").exists)
        os.kill(os.getpid(), signal.SIGINT)
        while again and not ended.wait(0.3):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    code, out, _ = main("--env-ids", "A", "--num-seeds", 1, "--command", command)
    ended.set()
    thread.join()
    assert code == 130
    assert not Path("/proc", Path("pid").read_text().strip()).exists()
    assert "stopping 1 runs" in out and out.endswith("runs: 1 stopped\n")


def test_ctrl_c_works_where_nobody_reads_the_output_any_more():
    argv = ["--env-ids", "A", "--num-seeds", "1", "--command", "echo $$ > pid; exec sleep 100 #"]
    process = subprocess.Popen([*MODULE, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: Path("pid").exists() and Path("pid").read_text())
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.stderr.read() == b""
    process.stderr.close()
    assert not Path("/proc", Path("pid").read_text().strip()).exists()


def test_what_a_run_leaves_behind_is_ended():
    code, *_ = main("--env-ids", "A", "--num-seeds", 1, "--command", "sleep 100 & echo $! > pid; echo")
    assert code == 0
    status = Path("/proc", Path("pid").read_text().strip(), "status")
    wait_for(lambda: not status.exists() or "State:\tZ" in status.read_text())


# -------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--env-ids", "--env-ids is empty; name at least one environment"),
        ("--env-ids A A", "--env-ids names A twice"),
        ("--command=", "--command is empty"),
        ("--command='", "--command gives no shell command; mend it: bash: "),
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
            "--slurm-total-cpus 6 is no multiple of --slurm-ntasks 4",
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


# ----------------------------------------------------------------------------------------------- SLURM


def slurm_script(*flags, env_ids=("Breakout-v5", "Pong-v5"), command="echo", seeds=2, template=TEMPLATE):
    code, out, err = main(
        *("--env-ids", *env_ids, "--command", command, "--num-seeds", seeds, "--workers", 0),
        *("--slurm-template-path", template, *flags),
    )
    assert code == 0, err
    return out


def directives(script):
    return dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", script, re.MULTILINE))


def test_the_command_of_the_readme_submits_a_job_array():
    executable("sbatch", 'printf "%s\\n" "$@" > submitted; echo Submitted batch job 123')
    Path("cleanba.slurm_template").symlink_to(TEMPLATE)
    command = (
        "poetry run python cleanba/cleanba_ppo_envpool_impala_atari_wrapper_large.py --distributed "
        "--learner-device-ids 1 2 3 --track --save-model --upload-model"
    )
    code, out, err = main(
        *("--env-ids", "Breakout-v5", "--command", command, "--num-seeds", 1, "--workers", 1),
        *("--slurm-gpus-per-task", 4, "--slurm-ntasks", 2, "--slurm-nodes", 1),
        *("--slurm-template-path", "cleanba.slurm_template"),
    )
    assert (code, err) == (0, "")
    (path,) = Path("submitted").read_text().splitlines()
    assert out.splitlines()[1:] == ["Submitted batch job 123", f"script: {path}"]
    script = Path(path).read_text()
    assert f"command='{command}'" in script
    assert "env_ids=(Breakout-v5)\nseeds=(1)\n" in script
    assert directives(script) == {
        "job-name": "cleanba",
        "nodes": "1",
        "ntasks": "2",
        "gpus-per-task": "4",
        "array": "0-0%1",
        "output": f"{Path(path).parent.resolve()}/slurm-%A_%a.out",
        "open-mode": "append",
        "requeue": "",
        "signal": "TERM@120",
    }
    assert Path(path).parent.is_dir()  # SLURM opens the output before the script could make the folder


def test_flags_become_directives():
    script = slurm_script(
        *("--slurm-partition", "gpu long", "--slurm-account", "lab", "--slurm-qos", "low"),
        *("--slurm-time", "8:00:00", "--slurm-ntasks", 2, "--slurm-total-cpus", 24, "--slurm-nodes", 2),
    )
    given = directives(script)
    assert given["partition"] == "'gpu long'"
    assert [given[name] for name in ("account", "qos", "time", "nodes", "ntasks", "cpus-per-task")] == [
        *("lab", "low", "8:00:00", "2", "2", "12")
    ]
    assert given["array"] == "0-3"  # --workers 0: printed, to be submitted by hand without a limit
    assert directives(slurm_script("--slurm-gpus-per-task", 0)).get("gpus-per-task") is None


def test_the_template_names_no_site():
    assert not re.search(r"--(partition|account|qos|time)=[^{]", TEMPLATE.read_text())


def test_the_script_lists_what_is_not_complete():
    executable("sbatch", "echo Submitted batch job 1")
    argv = ["--env-ids", "A", "B", "--command", "echo", "--slurm-template-path", TEMPLATE]
    assert main("--env-ids", "A", "--command", "echo", "--num-seeds", 1)[0] == 0
    code, out, _ = main(*argv, "--num-seeds", 2, "--workers", 2)
    assert code == 0 and out.startswith("runs: 3 waiting, 1 done")
    script = files("sbatch")["job"].read_text()
    assert "env_ids=(B A B)\nseeds=(1 2 2)\n" in script
    assert directives(script)["array"] == "0-2%2"
    Path("bin/sbatch").write_text("#!/bin/bash\nexit 1")
    assert main("--env-ids", "A", *argv[3:], "--num-seeds", 1)[0] == 0  # complete: nothing is submitted


def test_a_refusal_of_sbatch_is_passed_on():
    executable("sbatch", "printf 'sbatch: error: invalid partition\\nBatch job failed' >&2; exit 1")
    code, out, err = main("--env-ids", "A", "--command", "echo", "--slurm-template-path", TEMPLATE)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: --slurm-template-path: sbatch refused runs/benchmark/")
    assert line.endswith(": sbatch: error: invalid partition Batch job failed")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{{env_ids}}", "{{ environments }}", "unknown {{environments}}; use partition, account, "),
        ("{{seeds}}", "1", "no {{seeds}}; see cleanba.slurm_template"),
        ("{{account}}", "lab", "no {{account}}; see cleanba.slurm_template"),
    ],
)
def test_a_template_with_wrong_names_is_refused(old, new, message):
    Path("mine").write_text(TEMPLATE.read_text().replace(old, new))
    code, out, err = main(
        "--env-ids", "A", "--command", "echo", "--slurm-account", "lab", "--slurm-template-path", "mine"
    )
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"error: --slurm-template-path mine: {message}")


def test_a_template_may_set_what_no_flag_gives():
    Path("mine").write_text(TEMPLATE.read_text().replace("{{account}}", "lab"))
    assert directives(slurm_script(template="mine"))["account"] == "lab"


SRUN = f"""#!{sys.executable}
import os, subprocess, sys, time
argv = sys.argv[1:]
while argv[0].startswith("--"):
    print(argv.pop(0), file=open("srun_flags", "a"))
tasks = [
    subprocess.Popen(argv, env=os.environ | dict(SLURM_PROCID=str(i)), process_group=0)
    for i in range(int(os.environ.get("TASKS", 2)))
]
print(*(task.pid for task in tasks), file=open("task_pids", "w"))
while None in [task.poll() for task in tasks]:
    if any(task.returncode for task in tasks):  # --kill-on-bad-exit
        [os.killpg(task.pid, 9) for task in tasks if task.returncode is None]
    time.sleep(0.01)
sys.exit(max(128 - task.returncode if task.returncode < 0 else task.returncode for task in tasks))
"""


@pytest.fixture
def array_task(monkeypatch):
    """Starts one array task of a script, with a fake srun of two processes and a fake scontrol."""
    executable("scontrol", 'echo "$@" >> scontrol_calls')
    executable("srun", "")
    Path("bin/srun").write_text(SRUN)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")

    def start(script, task=0, **env):
        log_dir = re.search(r"^#SBATCH --output=(.*)/slurm", script, re.MULTILINE)[1]
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        Path("job.sh").write_text(script)
        assert subprocess.run(["bash", "-n", "job.sh"]).returncode == 0
        env = os.environ | {"SLURM_ARRAY_TASK_ID": str(task)} | env
        return subprocess.Popen(["bash", "job.sh"], env=env)

    return start


def test_an_array_task_runs_its_environment_and_seed(array_task):
    script = slurm_script(
        command="""printf '<%s>' 'a  b' "$SLURM_PROCID" """, env_ids=("A", "ALE/It's $1-v5")
    )
    assert array_task(script, 3).wait(20) == 0
    assert set(files("done")) == {"ALE_It's $1-v5__2"}
    log = files("log")["ALE_It's $1-v5__2"].read_text()
    for process in (0, 1):
        assert f"<a  b><{process}><--env-id><ALE/It's $1-v5><--seed><2>" in log
    assert Path("srun_flags").read_text() == "--kill-on-bad-exit\n--wait=0\n"
    assert not Path("scontrol_calls").exists() and not files("preempted")


def test_srun_gets_the_cores_of_the_job(array_task):
    assert array_task(slurm_script(), SLURM_CPUS_PER_TASK="12").wait(20) == 0
    assert Path("srun_flags").read_text() == "--kill-on-bad-exit\n--wait=0\n--cpus-per-task=12\n"


@pytest.mark.parametrize(
    "command", ["exit 75 #", "exec bash -c 'exit 75'", "run() { sleep 0.$SLURM_PROCID; exit 75; }; run"]
)
def test_a_preempted_array_task_is_requeued(array_task, command):
    """Also where one process leaves before the other, which srun would kill."""
    assert array_task(slurm_script(command=command), 1).wait(20) == 75
    assert Path("scontrol_calls").read_text() == "requeue incomplete 7_1\n"
    assert not files("done") and not files("preempted")


def test_the_first_preempted_process_does_not_cost_the_others_their_state(array_task):
    command = "run() { sleep 0.$((3 * SLURM_PROCID)); echo saved; return 75; }; run"
    assert array_task(slurm_script(command=command)).wait(20) == 75
    assert files("log")["Breakout-v5__1"].read_text().splitlines().count("saved") == 2


def test_a_failed_requeue_is_explained(array_task):
    executable("scontrol", "echo 'Requested operation is presently disabled'; exit 1")
    assert array_task(slurm_script(command="exit 75 #")).wait(20) == 75
    log = files("log")["Breakout-v5__1"].read_text()
    assert "presently disabled\n--- could not be requeued: start the benchmark again" in log


@pytest.mark.parametrize("code", [1, 2, 137])
def test_any_other_exit_code_of_an_array_task_is_passed_on(array_task, code):
    assert array_task(slurm_script(command=f"exit {code} #"), TASKS="1").wait(20) == code
    assert not files("done") and not Path("scontrol_calls").exists()


def test_an_array_task_survives_sigterm_until_its_processes_have_saved(array_task):
    """SIGTERM to all processes of the steps and to the batch shell."""
    save = "trap 'sleep 0.2; echo saved; exit 75' TERM; touch under_way.$$; while :; do sleep 0.01; done"
    job = array_task(slurm_script(command=f"run() {{ bash -c {shlex.quote(save)}; }}; run"))
    wait_for(lambda: len(list(Path().glob("under_way.*"))) == 2)
    job.terminate()
    for pid in Path("task_pids").read_text().split():
        os.killpg(int(pid), signal.SIGTERM)
    assert job.wait(20) == 75
    assert files("log")["Breakout-v5__1"].read_text().splitlines().count("saved") == 2
    assert Path("scontrol_calls").read_text() == "requeue incomplete 7_0\n"


def test_what_is_complete_or_under_way_is_not_done_twice(array_task):
    script = slurm_script(command="echo once; :")
    for _ in range(2):
        assert array_task(script).wait(20) == 0
    log = files("log")["Breakout-v5__1"]
    assert log.read_text().splitlines().count("once") == 2  # by the two processes of the first
    files("done")["Breakout-v5__1"].unlink()
    with log.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert array_task(script).wait(20) == 0
    assert log.read_text().splitlines().count("once") == 2 and not files("done")
    assert log.read_text().endswith("--- job 7_0 leaves: this run is under way in another job\n")
