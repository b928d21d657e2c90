"""A real Slurm on one machine: a controller and two virtual nodes, as root, without systemd, cgroups or accounting.

Ports, keys, state and logs are its own, in a folder of its own, so an installed Slurm is not touched.
Needs Debian's packages slurm-wlm and munge.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "slurmctld", "slurmd", "munged")
NODES = ("n1", "n2")
CONFIGURATION = """
ClusterName=isoflop
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
CryptoType=crypto/munge
SlurmctldPort={port}
SlurmdPort={port1}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=10
MinJobAge=300
JobRequeue=1
SchedulerParameters=sched_interval=2,batch_sched_delay=0
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{port2}-{port3}] CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why no cluster can be started here, or None."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm munge)"
    return "a cluster of its own is started as root" if os.geteuid() != 0 else None


class SlurmCluster:
    """Started on entry, ended on exit; SLURM_CONF points to it in between."""

    def __init__(self, root: Path, port: int = 26917):
        self.root, self._port = root, port

    def __enter__(self) -> "SlurmCluster":
        for name in ("state", "spool-n1", "spool-n2", "log", "munge"):
            (self.root / name).mkdir(parents=True)
        self.root.chmod(0o755)
        self._start_munge()
        host = socket.gethostname().partition(".")[0]
        ports = {"port": self._port, **{f"port{i}": self._port + i for i in (1, 2, 3)}}
        configuration = self.root / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(host=host, root=self.root, **ports))
        os.environ["SLURM_CONF"] = str(configuration)
        run("slurmctld", "-f", configuration)
        for node in NODES:
            self.start_node(node)
        self.wait_until_idle()
        return self

    def __exit__(self, *exception) -> None:
        subprocess.run(["scancel", "-u", "root"], capture_output=True)
        time.sleep(1)
        for path in [*self.root.glob("slurmd-*.pid"), self.root / "slurmctld.pid", self.root / "munge" / "munged.pid"]:
            if path.exists():
                end(int(path.read_text()))
        os.environ.pop("SLURM_CONF", None)

    def start_node(self, node: str) -> None:
        run("slurmd", "-f", self.root / "slurm.conf", "-N", node)

    def wait_until_idle(self, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() != "2":
            assert time.monotonic() < deadline, run("sinfo", "-N", "-l")
            time.sleep(0.2)

    def kill_node(self, node: str) -> None:
        """As if its power failed: the daemon, the step managers and the jobs' processes, by SIGKILL. The managers go
        before the jobs, or they would report the deaths."""
        daemon = int((self.root / f"slurmd-{node}.pid").read_text())
        jobs = run("squeue", "-h", "-w", node, "-o", "%A").split()
        managers = [
            pid for pid, command in commands() if any(command.startswith(f"slurmstepd: [{job}") for job in jobs)
        ]
        victims = [pid for manager in managers for pid in descendants(manager)]
        for pid in [daemon, *managers, *victims]:
            os.kill(pid, signal.SIGKILL)

    def _start_munge(self) -> None:
        folder = self.root / "munge"
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        places = {"key-file": key, "socket": folder / "socket", "pid-file": folder / "munged.pid"}
        places |= {"log-file": folder / "munged.log", "seed-file": folder / "seed"}
        run("munged", "--force", *(f"--{name}={path}" for name, path in places.items()))


def run(*command) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass


def commands() -> list[tuple[int, str]]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append((int(path.parent.name), path.read_bytes().replace(b"\0", b" ").decode(errors="replace")))
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, wave = [], [pid]
    while wave:
        wave = [child for child, parent in parents.items() if parent in wave]
        found += wave
    return found
