"""A real SLURM for the tests: one node, `localhost`, with 32 CPUs and 16 GPUs that exist only on paper.

Debian's daemons run without systemd on free ports of the loopback device, with all their files in one folder.
They and the jobs live in a PID namespace, which ends with everything in it, whatever a test has left running.
So the process ids in a job mean nothing outside; use `scancel --signal` to signal its processes.
"""

import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from helpers import debian

COMMAND_OF_PACKAGE = {"munge": "munged", "slurmctld": "slurmctld", "slurmd": "slurmd", "slurm-client": "srun"}

SLURM_CONF = """
ClusterName=tests
SlurmUser=root
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={controller_port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPidFile={folder}/slurmctld.pid
StateSaveLocation={folder}/slurmctld
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/slurmd
SlurmdParameters=config_overrides
NodeName=DEFAULT CPUs=32 RealMemory=65536 Gres=gpu:16
NodeName=localhost NodeHostname={hostname} NodeAddr=127.0.0.1 Port={node_port}
PartitionName=tests Nodes=localhost Default=YES PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=localhost PriorityTier=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE

ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
MailProg=/bin/true

# A requeued job waits until its old credentials expire; 5 seconds is the shortest lifetime they can have.
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
# The next scheduling cycle then starts it; by default there is one a minute.
SchedulerParameters=batch_sched_delay=1,bf_interval=1,sched_interval=1
# Without accounting, the state of a finished job is known only while the controller remembers it.
MinJobAge=86400
# The coordinator's port is derived from the job id, so two clusters on a machine need different ids.
FirstJobId={controller_port}
"""

# The shell is the first process of the namespace, so all others end with it. It waits for the end of its
# input, which comes when the tests close it or die in any way. (A background command needs a descriptor for
# its input.)
DAEMONS = """
set -e
exec 3<&0 >start.log 2>&1
munged --socket="$PWD/munge.socket" --key-file="$PWD/munge.key" --seed-file="$PWD/munge.seed" \
    --log-file="$PWD/munged.log" --pid-file="$PWD/munged.pid"
slurmctld -D >slurmctld.log 2>&1 &
slurmd -D >slurmd.log 2>&1 &
cat <&3 &
wait $!
"""


class Cluster:
    def __init__(self, folder: Path):
        self.folder = folder
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(
        self,
        *argv: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        exit_code: int = 0,
        timeout: float = 60,
    ) -> str:
        """The output of srun, sbatch, scontrol, … A job gets the tests' environment, changed by `env`."""
        command = subprocess.run(
            argv,
            cwd=cwd,
            env=os.environ | self.env | (env or {}),
            timeout=timeout,
            capture_output=True,
            text=True,
        )
        assert command.returncode == exit_code, (
            f"{argv} exited with {command.returncode}\n{command.stdout}\n{command.stderr}\n{self.logs()}"
        )
        return command.stdout

    def wait_for(self, job_id: str, timeout: float = 60, *, expected: str = "COMPLETED") -> str:
        """Wait until the job, or each job of an array, has ended as expected."""
        squeue = ["squeue", "--noheader", "--format=%T", "--jobs", job_id]
        deadline = time.monotonic() + timeout
        while unfinished := self.run(*squeue).split():
            assert time.monotonic() < deadline, (
                f"job {job_id} is {unfinished} after {timeout} s\n{self.logs()}"
            )
            time.sleep(0.1)
        states = set(self.run(*squeue, "--states=all").split())
        assert states == {expected}, f"job {job_id} ended as {states}\n{self.logs()}"
        return expected

    def logs(self) -> str:
        """The last lines of the daemons' logs."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log"))
        )


def why_not_here() -> str | None:
    """Why a cluster cannot run on this machine; None if it can."""
    return debian.why_not_here("the tests' SLURM")


def install() -> None:
    """Install missing packages with apt-get."""
    missing = [package for package, command in COMMAND_OF_PACKAGE.items() if not shutil.which(command)]
    if missing:
        debian.install(*missing)


@contextmanager
def start() -> Iterator[Cluster]:
    """A cluster that accepts jobs. At the end it is stopped, with everything that runs in it."""
    # In /tmp itself: the path of a socket can have at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as name:
        cluster = Cluster(Path(name))
        write_files(cluster.folder)
        with subprocess.Popen(
            [*debian.NAMESPACE, "sh", "-c", DAEMONS],
            cwd=cluster.folder,
            env=os.environ | cluster.env,
            stdin=subprocess.PIPE,
        ) as daemons:
            deadline = time.monotonic() + 30
            # sinfo fails until the controller answers; the node is unknown until slurmd has registered it.
            while "idle" not in cluster.run("sh", "-c", "sinfo --noheader --format=%T || true"):
                assert daemons.poll() is None and time.monotonic() < deadline, cluster.logs()
                time.sleep(0.1)
            yield cluster


def write_files(folder: Path) -> None:
    """The files that the daemons read."""
    folder.chmod(0o755)  # munged demands a socket that every user can reach,
    (folder / "munge.key").touch(mode=0o600)  # and a key that only its own user can read
    (folder / "munge.key").write_bytes(os.urandom(128))
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        controller_port, node_port = [s.getsockname()[1] for s in sockets]
    (folder / "slurm.conf").write_text(
        SLURM_CONF.format(
            folder=folder,
            hostname=socket.gethostname().split(".")[0],
            controller_port=controller_port,
            node_port=node_port,
        )
    )
    # Only GPUs with a device file show up in CUDA_VISIBLE_DEVICES. These files are copies of /dev/null.
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-15]\n")
    for index in range(16):
        os.mknod(folder / f"gpu{index}", stat.S_IFCHR | 0o600, os.stat("/dev/null").st_rdev)
    (folder / "slurmctld").mkdir()
    (folder / "slurmd").mkdir()
