"""A real SLURM on this host: munged, slurmctld and several slurmd, each in a network of its own.

Each daemon has its own network namespace, process namespace and host name: node1, node2, ... have the addresses
10.77.0.11, 10.77.0.12, ... on eth0, and a bridge in the namespace of the controller (10.77.0.1) joins them. Nothing
reaches the network of this host. All files are in a temporary folder. Needs root, and the programs of Debian's
slurm-wlm, munge, iproute2 and util-linux.

    with SlurmCluster(nodes=4) as slurm:
        print(slurm.run("sinfo"))

As a command it runs a command beside the controller, or a shell: python -m tests.support.real_slurm sinfo
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

PROGRAMS = "munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "ip", "unshare", "setpriv"
NETWORK = "10.77.0."
START_SECONDS = 60
CONF = """
ClusterName=ngram
SlurmctldHost=controller({network}1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_min_interval=100000,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout={lost_seconds}
MessageTimeout=10
KillWait={kill_wait}
CompleteWait=0
OverTimeLimit=0
NodeName=node[1-{nodes}] NodeAddr={network}[11-{last}] CPUs={cpus} RealMemory=1000
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""


def why_not():
    """Return why no SLURM can be started here, or ""."""
    absent = [program for program in PROGRAMS if _path(program) is None]
    if absent:
        return f"{', '.join(absent)} not installed; install slurm-wlm, munge and iproute2"
    return why_no_namespaces()


def why_no_namespaces():
    """Return why no network namespaces can be made here, or ""."""
    if os.geteuid() or _path("ip") is None:
        return "namespaces need root and iproute2"
    if subprocess.run(["unshare", "--net", "--uts", "--pid", "--fork", "true"], capture_output=True).returncode:
        return "this host allows no namespaces"
    return ""


def _path(program):
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Namespaces:
    """Network namespaces on one bridge, of which the first one holds the bridge; each has an address on eth0.

    hosts  last number of the address by name
    """

    def __init__(self, hosts):
        self.hosts, self.mark = hosts, secrets.token_hex(2)
        self._closing = ExitStack()

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_):
        self._closing.close()

    def _build(self):
        hub = next(iter(self.hosts))
        for name, number in self.hosts.items():
            space = self.space(name)
            ip("netns", "add", space)
            self._closing.callback(ip, "netns", "delete", space)
            ip("-n", space, "link", "set", "lo", "up")
            if name == hub:
                ip("-n", space, "link", "add", "eth0", "type", "bridge")
            else:
                port = f"port{number}"
                peer = "peer", "name", "eth0", "netns", space
                ip("-n", self.space(hub), "link", "add", port, "type", "veth", *peer)
                ip("-n", self.space(hub), "link", "set", port, "master", "eth0", "up")
            ip("-n", space, "address", "add", f"{NETWORK}{number}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")

    def space(self, name):
        return f"ngram-{self.mark}-{name}"

    def inside(self, name):
        """Return the start of a command line that runs a command in a namespace."""
        return ["ip", "netns", "exec", self.space(name)]

    def host(self, name):
        """Return the start of a command line that runs a command as the first process of a host of that name.

        When the command is killed, so are all its children.
        """
        # The shell stays the first process: it reaps orphans, which slurmd leaves.
        script = 'hostname "$1"; shift; "$@"; exit $?'
        own = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*self.inside(name), *own, "sh", "-c", script, "sh", name]

    def cut(self, name):
        """Cut the link of a host: packets are lost without an answer."""
        ip("-n", self.space(name), "link", "set", "eth0", "down")

    def join(self, name):
        ip("-n", self.space(name), "link", "set", "eth0", "up")


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class SlurmCluster:
    """A SLURM of several nodes; use it as a context manager.

    cpus          CPUs that each node says to have
    lost_seconds  after which the controller takes a silent node for lost
    kill_wait     seconds between SIGTERM and SIGKILL at the time limit
    """

    def __init__(self, nodes=4, cpus=1, lost_seconds=10, kill_wait=10):
        self.nodes = [f"node{number}" for number in range(1, nodes + 1)]
        self.cpus, self.lost_seconds, self.kill_wait = cpus, lost_seconds, kill_wait
        self._daemons = {}  # processes by host
        self._closing = ExitStack()

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_):
        self._closing.close()

    def _start(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ngram-slurm-", dir="/tmp"))  # short: sockets have short names
        self.folder.chmod(0o755)
        self._closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
        conf = CONF.format(
            folder=self.folder, network=NETWORK, nodes=len(self.nodes), last=10 + len(self.nodes), cpus=self.cpus,
            lost_seconds=self.lost_seconds, kill_wait=self.kill_wait,
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(conf)
        # Without it, slurmd looks for a mounted cgroup file system, although no plugin of ours uses one.
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={self.folder}/cgroup\n")
        for name in ("state", "cgroup"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        hosts = {"controller": 1} | {name: 11 + number for number, name in enumerate(self.nodes)}
        self.spaces = self._closing.enter_context(Namespaces(hosts))
        self._closing.callback(self._end_all)
        places = {"key-file": key, "socket": self.folder / "munge.socket", "pid-file": self.folder / "munge.pid"}
        places |= {"log-file": self.folder / "munge.log", "seed-file": self.folder / "munge.seed"}
        munge = [_path("munged"), "--foreground", "--force", *(f"--{name}={path}" for name, path in places.items())]
        self._spawn("munged", munge)
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        conf_path = self.folder / "slurm.conf"
        self._spawn("controller", [*self.spaces.host("controller"), _path("slurmctld"), "-D", "-f", str(conf_path)])
        for name in self.nodes:
            self.start_node(name)
        self._wait(lambda: self.states() == ["idle"] * len(self.nodes), "the nodes")

    def start_node(self, name):
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        daemon = [_path("slurmd"), "-D", "-f", str(self.folder / "slurm.conf")]
        self._spawn(name, [*self.spaces.host(name), *daemon])

    def kill_node(self, name):
        """End a node with all its processes, as a loss of power does."""
        daemon = self._daemons.pop(name)
        _end(daemon)

    def _spawn(self, host, command):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "DASK_"))}
        log = open(self.folder / f"{host}.out", "ab")  # noqa: SIM115
        with log:
            self._daemons[host] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment, start_new_session=True,
            )  # fmt: skip

    def _end_all(self):
        for daemon in reversed(self._daemons.values()):
            _end(daemon)

    def _wait(self, is_ready, what):
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            dead = [host for host, daemon in self._daemons.items() if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.out"))
                raise RuntimeError(f"{what} did not start ({', '.join(dead) or 'in time'}):\n{logs}")
            time.sleep(0.1)

    def command(self, *arguments):
        """Return a command line that runs beside the controller."""
        return [*self.spaces.inside("controller"), *map(str, arguments)]

    @property
    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "DASK_"))}
        return kept | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *arguments, cwd=None, check=True, **variables):
        """Run a command beside the controller; return what it prints."""
        done = subprocess.run(
            self.command(*arguments), cwd=cwd, env=self.environment | variables, capture_output=True, text=True
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def states(self):
        """Return the states of all nodes, such as idle or down*."""
        return self.run("sinfo", "--Node", "--noheader", "--partition=low", "--format=%t", check=False).split()

    def job(self, number):
        """Return what scontrol says of a job, by name; {} if it knows no such job, as at times in a requeue."""
        words = self.run("scontrol", "--oneliner", "show", "job", number, check=False).split()
        return dict(word.partition("=")[::2] for word in words)


def _end(daemon):
    """End a process that `_spawn` started, and all that it started. unshare and ip netns exec leave one process."""
    with suppress(ProcessLookupError):
        daemon.send_signal(signal.SIGKILL)
    daemon.wait()


def main(arguments):
    if why := why_not():
        print(f"no SLURM: {why}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with SlurmCluster() as slurm:
        print(f"SLURM_CONF={slurm.folder}/slurm.conf", file=sys.stderr)
        shell = arguments or [os.environ.get("SHELL", "bash")]
        return subprocess.run(slurm.command(*shell), env=slurm.environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
