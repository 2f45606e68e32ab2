"""The batch scripts that the benchmark submits, run with a fake sbatch, srun and scontrol."""

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.benchmark_command import TEMPLATE, files, main, make_executable, wait_for

pytestmark = pytest.mark.usefixtures("bare_machine")


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
    make_executable("sbatch", 'printf "%s\\n" "$@" > submitted; echo Submitted batch job 123')
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
    assert Path(path).parent.is_dir()  # SLURM opens the output before the script can make the folder


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
    assert given["array"] == "0-3"  # --workers 0: printed, without a limit
    assert directives(slurm_script("--slurm-gpus-per-task", 0)).get("gpus-per-task") is None


def test_processes_that_would_train_alone_are_warned_of():
    flags = ("--env-ids", "A", "--num-seeds", 1, "--workers", 0, "--slurm-ntasks", 2)
    template = ("--slurm-template-path", "cleanba.slurm_template")
    _, _, err = main(*flags, "--command", "python train.py", *template)
    assert "warning: each of the 2 processes of a run trains alone" in err
    _, _, err = main(*flags, "--command", "python train.py --distributed", *template)
    assert "warning" not in err


@pytest.mark.parametrize("flag", ["partition", "account", "qos", "time"])
@pytest.mark.parametrize("text", ["gpu\ntouch owned #", "gpu\rx", "gpu\x1b[2J"])
def test_a_flag_cannot_begin_a_new_line_of_the_script(flag, text):
    """In a comment, quotes do not keep a line end from ending it: what follows would be executed."""
    argv = ["--env-ids", "A", "--command", "echo", "--workers", 0, "--slurm-template-path", TEMPLATE]
    code, out, err = main(*argv, f"--slurm-{flag}", text)
    assert (code, out) == (2, "")
    assert err == f"error: --slurm-{flag} has a line end or another control character; leave it out\n"


def test_nor_can_the_folder_or_an_environment(tmp_path, monkeypatch):
    (tmp_path / "two\nlines").mkdir()
    monkeypatch.chdir(tmp_path / "two\nlines")
    argv = ["--command", "echo", "--workers", 0, "--slurm-template-path", TEMPLATE, "--env-ids"]
    for flag, values in {"--log-dir": ["A"], "--env-ids": ["A\nB"]}.items():
        code, out, err = main(*argv, *values)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {flag}") and "has a line end or another control character" in err


def test_the_script_is_for_its_owner_only():
    make_executable("sbatch", "echo Submitted batch job 1")
    argv = ["--env-ids", "A", "--command", "HF_TOKEN=hf_x python a.py", "--slurm-template-path", TEMPLATE]
    assert main(*argv)[0] == 0
    script, command = files("sbatch")["job"], files("txt")["command"]
    assert [path.stat().st_mode & 0o777 for path in (script, command)] == [0o600] * 2
    assert "HF_TOKEN=hf_x" in script.read_text() and command.read_text() == "HF_TOKEN=*** python a.py\n"


def test_the_template_names_no_cluster():
    assert not re.search(r"--(partition|account|qos|time)=[^{]", TEMPLATE.read_text())


def test_the_script_lists_incomplete_runs():
    make_executable("sbatch", "echo Submitted batch job 1")
    argv = ["--env-ids", "A", "B", "--command", "echo", "--slurm-template-path", TEMPLATE]
    assert main("--env-ids", "A", "--command", "echo", "--num-seeds", 1)[0] == 0
    code, out, _ = main(*argv, "--num-seeds", 2, "--workers", 2)
    assert code == 0 and out.startswith("runs: 3 waiting, 1 done")
    script = files("sbatch")["job"].read_text()
    assert "env_ids=(B A B)\nseeds=(1 2 2)\n" in script
    assert directives(script)["array"] == "0-2%2"
    Path("bin/sbatch").write_text("#!/bin/bash\nexit 1")
    assert main("--env-ids", "A", *argv[3:], "--num-seeds", 1)[0] == 0  # all complete: nothing is submitted


def test_an_error_of_sbatch_is_shown():
    make_executable("sbatch", "printf 'sbatch: error: invalid partition\\nBatch job failed' >&2; exit 1")
    code, out, err = main("--env-ids", "A", "--command", "echo", "--slurm-template-path", TEMPLATE)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: --slurm-template-path: sbatch refused runs/benchmark/")
    assert line.endswith(": sbatch: error: invalid partition Batch job failed")


def test_a_template_of_this_name_in_the_working_directory_comes_first():
    assert slurm_script(template="cleanba.slurm_template") == slurm_script()
    Path("cleanba.slurm_template").write_text(TEMPLATE.read_text() + "# mine\n")
    assert slurm_script(template="cleanba.slurm_template") == slurm_script() + "# mine\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{{env_ids}}", "{{ environments }}", "unknown {{environments}}; use partition, account, "),
        ("{{seeds}}", "1", "no {{seeds}}; see cleanba.slurm_template"),
        ("{{account}}", "lab", "no {{account}}; see cleanba.slurm_template"),
    ],
)
def test_a_template_with_wrong_placeholders_is_refused(old, new, message):
    Path("mine").write_text(TEMPLATE.read_text().replace(old, new))
    code, out, err = main(
        "--env-ids", "A", "--command", "echo", "--slurm-account", "lab", "--slurm-template-path", "mine"
    )
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"error: --slurm-template-path mine: {message}")


def test_a_template_may_replace_the_placeholder_of_a_flag_that_is_not_given():
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
    """Starts one array task of a script, with a fake scontrol and a fake srun that starts two processes."""
    make_executable("scontrol", 'echo "$@" >> scontrol_calls')
    make_executable("srun", "")
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


def test_each_job_has_a_secret_of_its_own_which_is_only_in_the_environment(array_task):
    """And a log that only its owner can read."""
    script = slurm_script(command='test $SLURM_PROCID = 1 || echo "$CLEANBA_JOB_SECRET" >> secrets; :')
    for task in (0, 1):
        assert array_task(script, task).wait(20) == 0
    first, second = Path("secrets").read_text().split()
    assert len(first) == len(second) == 64 and first != second
    for log in files("log").values():
        assert log.stat().st_mode & 0o777 == 0o600 and first not in log.read_text()


def test_srun_gets_the_cores_of_the_job(array_task):
    assert array_task(slurm_script(), SLURM_CPUS_PER_TASK="12").wait(20) == 0
    assert Path("srun_flags").read_text() == "--kill-on-bad-exit\n--wait=0\n--cpus-per-task=12\n"


@pytest.mark.parametrize(
    "command", ["exit 75 #", "exec bash -c 'exit 75'", "run() { sleep 0.$SLURM_PROCID; exit 75; }; run"]
)
def test_a_preempted_array_task_is_requeued(array_task, command):
    """Even if one process exits before the other, which srun would then kill."""
    assert array_task(slurm_script(command=command), 1).wait(20) == 75
    assert Path("scontrol_calls").read_text() == "requeue incomplete 7_1\n"
    assert not files("done") and not files("preempted")


def test_all_preempted_processes_can_save_after_the_first_has_exited(array_task):
    command = "run() { sleep 0.$((3 * SLURM_PROCID)); echo saved; return 75; }; run"
    assert array_task(slurm_script(command=command)).wait(20) == 75
    assert files("log")["Breakout-v5__1"].read_text().splitlines().count("saved") == 2


def test_a_failed_requeue_is_reported(array_task):
    make_executable("scontrol", "echo 'Requested operation is presently disabled'; exit 1")
    assert array_task(slurm_script(command="exit 75 #")).wait(20) == 75
    log = files("log")["Breakout-v5__1"].read_text()
    assert "presently disabled\n--- could not be requeued: run the benchmark command again" in log


@pytest.mark.parametrize("code", [1, 2, 137])
def test_any_other_exit_code_of_an_array_task_is_passed_on(array_task, code):
    assert array_task(slurm_script(command=f"exit {code} #"), TASKS="1").wait(20) == code
    assert not files("done") and not Path("scontrol_calls").exists()


def test_an_array_task_survives_sigterm_until_its_processes_have_saved(array_task):
    """SIGTERM goes to all processes of the job steps and to the batch shell."""
    save = "trap 'sleep 0.2; echo saved; exit 75' TERM; touch started.$$; while :; do sleep 0.01; done"
    job = array_task(slurm_script(command=f"run() {{ bash -c {shlex.quote(save)}; }}; run"))
    wait_for(lambda: len(list(Path().glob("started.*"))) == 2)
    job.terminate()
    for pid in Path("task_pids").read_text().split():
        os.killpg(int(pid), signal.SIGTERM)
    assert job.wait(20) == 75
    assert files("log")["Breakout-v5__1"].read_text().splitlines().count("saved") == 2
    assert Path("scontrol_calls").read_text() == "requeue incomplete 7_0\n"


def test_a_complete_or_running_run_is_not_repeated(array_task):
    script = slurm_script(command="echo once; :")
    for _ in range(2):
        assert array_task(script).wait(20) == 0
    log = files("log")["Breakout-v5__1"]
    assert log.read_text().splitlines().count("once") == 2  # by the two processes of the first task
    files("done")["Breakout-v5__1"].unlink()
    with log.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert array_task(script).wait(20) == 0
    assert log.read_text().splitlines().count("once") == 2 and not files("done")
    assert log.read_text().endswith("--- job 7_0 exits: another job is already running this run\n")
