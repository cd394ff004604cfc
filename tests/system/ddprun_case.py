"""What the tests of tests/system and tests/interop share: start the real ddprun, find every process of
its job, and wait for things with a deadline.

A job's processes are found by a marker variable in their environment, so that a setsid grandchild that
nobody knows of any more is found too, and nothing else is ever touched. A test says what it waits for;
nothing here sleeps for a time that was guessed.
"""

import contextlib
import glob
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

import old_kernel

PATIENCE = 60.0  # Seconds that anything may take on a loaded machine before a test gives up on it.
# Seconds after which nothing of an ended job may be left. The product promises 100 ms, and the figure is printed; a loaded machine
# gets more: the kernel alone may take a second to take a dying process's memory apart. Nobody else would end these before 30 s.
PROMISED = 10.0
MARKER = "DDPRUN_TEST_JOB"
SKIPPED = 77
POLL = 0.004

BIN = os.path.abspath(os.environ.get("DDPRUN_BIN", ""))
DDPRUN = os.path.join(BIN, "ddprun")
# Started without ddprun, it uses the Python package of this tree.
STARTED_RANK = ["/usr/bin/python3", os.path.join(os.path.dirname(os.path.abspath(__file__)), "started_rank.py")]
PACKAGE = {"PYTHONPATH": os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python")),
           "PYTHONDONTWRITEBYTECODE": "1",
           "DDPRUN_LIB": os.environ.get("DDPRUN_LIB") or os.path.join(os.path.dirname(BIN), "worker_sdk", "libddprun.so")}

# What a job must not take over from whoever runs the tests.
_FOREIGN = re.compile(r"PET_|DDPRUN_|TORCH|RANK$|WORLD_SIZE$|MASTER_|LOCAL_RANK$|OMP_|SLURM|OMPI_|PMI_|PMIX_|MPI_|"
                      r"JOB_COMPLETION_INDEX$")


def wait_until(condition, what, patience=PATIENCE):
    """The first true value of condition(); fails with `what` if there is none in time."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience:g} s: {what() if callable(what) else what}")
        time.sleep(POLL)


def free_port():
    """Below the range from which the kernel gives ports to others: until ddprun listens on it, nobody else is given it."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def is_sanitized():
    """Whether the ddprun that is tested has a sanitizer built in."""
    libraries = subprocess.run(["ldd", DDPRUN], capture_output=True, text=True, timeout=20, check=False).stdout
    return bool(re.search(r"lib[at]san\.", libraries))


def clean_environment():
    return {k: v for k, v in os.environ.items() if not _FOREIGN.match(k)}


class Process:
    """One entry of /proc, as it was when it was read."""

    def __init__(self, pid):
        self.pid = pid
        with open(f"/proc/{pid}/stat", "rb") as f:
            name, rest = f.read().decode(errors="replace").split("(", 1)[1].rsplit(")", 1)
        fields = rest.split()
        self.name, self.state, self.ppid = name, fields[0], int(fields[1])
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            self.argv = f.read().decode(errors="replace").split("\0")[:-1] or [""]  # Ending: none.

    def __repr__(self):
        return f"{self.pid} (child of {self.ppid}, {self.state}) {' '.join(self.argv)[:80]}"


def processes_with(marker):
    """Every living process whose environment holds the marker. Zombies have none."""
    needle = f"{MARKER}={marker}\0".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as f:
                if needle not in f.read() + b"\0":
                    continue
            process = Process(int(entry))
        except (OSError, IndexError):
            continue  # It ended while we looked.
        if process.state not in "ZX":
            found.append(process)
    return found


def send_signal(processes, number):
    """To those of them that live: one may end by itself, or because of a signal to one before it."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


class Job:
    """One ddprun on one "machine". What it prints goes to files, so that it never waits for us."""

    def __init__(self, argv, folder, env=None, netns=None, cwd=None, cgroup=None):
        self.marker = uuid.uuid4().hex
        self.argv = argv
        self._out = tempfile.NamedTemporaryFile(dir=folder, prefix="out-", delete=False)
        self._err = tempfile.NamedTemporaryFile(dir=folder, prefix="err-", delete=False)
        environment = {**clean_environment(), "DDPRUN_CONFIG": "", **(env or {}), MARKER: self.marker}
        prefix = ["ip", "netns", "exec", netns] if netns else []
        self.started = time.monotonic()
        self._popen = subprocess.Popen(prefix + argv, env=environment, cwd=cwd or folder,
                                       stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err,
                                       preexec_fn=cgroup.enter if cgroup else None)
        self.pid = self._popen.pid

    def out(self):
        return self._read(self._out)

    def err(self):
        return self._read(self._err)

    @staticmethod
    def _read(file):
        with open(file.name, "rb") as f:
            return f.read().decode(errors="replace")

    def text(self):
        said = [t if len(t) < 5000 else f"{t[:2500]}\n  ...\n{t[-2500:]}" for t in (self.out(), self.err())]
        return f"$ {shlex.join(self.argv)[:500]}\n{said[0]}{said[1]}(exit code {self._popen.poll()})"

    def ended(self):
        return self._popen.poll() is not None

    def wait(self, patience=PATIENCE):
        """The exit code, as a shell would show it."""
        try:
            code = self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {patience:g} s: {self.text()}\n{self.processes()}")
        return code if code >= 0 else 128 - code

    def wait_for(self, text, patience=PATIENCE):
        """Until standard error has a match of the pattern `text`; returns the match."""
        return wait_until(lambda: re.search(text, self.err()),
                          lambda: f"{text!r} in\n{self.text()}", patience)

    def processes(self):
        return processes_with(self.marker)

    def children(self):
        return [p for p in self.processes() if p.ppid == self.pid]

    def agents(self):
        return sorted((p for p in self.children() if p.name.startswith("ddprun") and p.name != "ddprun-memory" and
                       os.path.basename(p.argv[0]) == "ddprun"), key=lambda p: p.pid)

    def daemon(self):
        found = [p for p in self.children() if os.path.basename(p.argv[0]) == "ddprun-rendezvous"]
        return found[0] if found else None

    def is_keeper(self, process):
        """For the moment in which it forks one, the guardian bears the name, too."""
        return process.name == "keeper" and process.pid != self.pid

    def keepers(self):
        return [p for p in self.processes() if self.is_keeper(p)]

    def signal(self, number):
        os.kill(self.pid, number)

    def end(self):
        """Kills what is left of this job and of nothing else; the keeper last, which has folders to remove."""
        keepers_end = time.monotonic() + PROMISED
        while left := self.processes():
            late = time.monotonic() > keepers_end
            send_signal([p for p in left if late or not self.is_keeper(p)], signal.SIGKILL)
            if time.monotonic() > keepers_end + 1:
                break
            time.sleep(0.005)
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait(PATIENCE)
        self._out.close()
        self._err.close()


class JobsCgroup:
    """A cgroup for the jobs of one test; each makes one below it, and is to remove that again."""

    _count = 0

    def __init__(self):
        JobsCgroup._count += 1
        own = own_cgroup()
        self.path = f"{own}/ddprun-tests-{os.getpid()}-{JobsCgroup._count}" if own else None
        try:
            if self.path:
                os.mkdir(self.path)
        except OSError:  # A read-only tree, as in a container.
            self.path = None

    def enter(self):
        """In the child that is to be in it."""
        if self.path:
            with open(self.path + "/cgroup.procs", "wb", buffering=0) as f:
                f.write(b"0")

    def of(self, job):
        """Where `job` has its cgroup, if it could make one."""
        return f"{self.path}/ddprun-{job.pid}" if self.path else None

    def left(self):
        return [entry.path for entry in os.scandir(self.path) if entry.is_dir()] if self.path else []

    def remove(self):
        """With all in it, of a test that has failed too."""
        if not self.path:
            return
        if os.path.exists(self.path + "/cgroup.kill"):
            with open(self.path + "/cgroup.kill", "wb", buffering=0) as f:
                f.write(b"1")
        wait_until(lambda: all([self._removed(folder) for folder, _, _ in os.walk(self.path, topdown=False)]),
                   f"{self.path} to be empty")

    @staticmethod
    def _removed(folder):
        try:
            os.rmdir(folder)
        except OSError:  # What was killed still ends.
            return False
        return True


def own_cgroup():
    """Our own folder in the tree of version 2; None where there is none that we may write to."""
    with open("/proc/self/cgroup", encoding="ascii") as f:
        own = next((line[3:].strip().rstrip("/") for line in f if line.startswith("0::/")), None)
    for root in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        folder = f"{root}{own}"
        if own is not None and os.path.exists(folder + "/cgroup.procs") and os.access(folder, os.W_OK):
            return folder
    return None


class Gate:
    """Workers wait at it without using the CPU; once opened it is open for those who come later too."""

    def __init__(self, path):
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR)

    def open(self):
        if self._fd is None:
            return
        with open(self.path + ".open", "w", encoding="ascii"):
            pass
        os.rename(self.path + ".open", self.path)
        os.close(self._fd)
        self._fd = None


class DdprunCase(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ddprun-test-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.temporary = self.path("temporary")  # Every job's TMPDIR.
        os.mkdir(self.temporary, 0o1777)
        os.chmod(self.temporary, 0o1777)
        self.jobs = []
        self.cgroup = JobsCgroup()
        self.addCleanup(self.cgroup.remove)
        self.addCleanup(self.assert_nothing_of_ours_left)
        self.addCleanup(lambda: [job.end() for job in self.jobs])

    def path(self, name):
        return os.path.join(self.dir, name)

    def gate(self, name="gate"):
        gate = Gate(self.path(name))
        self.addCleanup(gate.open)
        return gate

    # Starting.

    def start(self, *argv, env=None, netns=None, cwd=None):
        """ddprun with these arguments; D is the test's folder for its workers."""
        return self.start_program([DDPRUN, *map(str, argv)], env=env, netns=netns, cwd=cwd)

    def start_program(self, argv, env=None, netns=None, cwd=None):
        environment = {"D": self.dir, "TMPDIR": self.temporary, "XDG_RUNTIME_DIR": self.temporary,
                       "XDG_STATE_HOME": self.path("state"), **(env or {})}
        job = Job(argv, self.dir, environment, netns, cwd, self.cgroup)
        self.jobs.append(job)
        return job

    def run_ddprun(self, *argv, code=0, patience=PATIENCE, **options):
        """ddprun to its end, which must come with `code` and leave nothing behind."""
        job = self.start(*argv, **options)
        self.finish(job, code, patience)
        return job

    def two_nodes(self, *argv, worker, options=((), ())):
        """Two commands on loopback that meet at one endpoint, the first hosting it."""
        endpoint = f"127.0.0.1:{free_port()}"
        env = {"DDPRUN_TOKEN": "a token of the tests"}
        common = ["--nnodes", "2", "--rdzv-endpoint", endpoint, *argv]
        first = self.start(*common, "--rdzv-conf", "is_host=1", *options[0], *worker, env=env)
        second = self.start(*common, "--rdzv-conf", "is_host=0", *options[1], *worker, env=env)
        return first, second

    # Ending.

    def finish(self, job, code=0, patience=PATIENCE):
        actual = job.wait(patience)
        self.assertEqual(actual, code, job.text())
        self.assert_nothing_left(job)
        self.assert_no_folder_left()

    def assert_nothing_left(self, *jobs, since=None):
        """No process of the jobs is left PROMISED seconds after `since`. Returns how long it took."""
        since = since or time.monotonic()
        while True:
            left = [p for job in jobs for p in job.processes()]
            took = time.monotonic() - since
            if not left:
                return took
            if took > PROMISED:
                self.fail(f"left {took:.2f} s later: {left}\n" + "\n".join(j.text() for j in jobs))
            time.sleep(POLL)

    def folders_left(self):
        """Temporary folders of ddprun that nobody asked for: those with a run's log folder in them stay."""
        found = [os.path.join(self.temporary, name) for name in os.listdir(self.temporary) if name.startswith("ddprun")]
        return [folder for folder in found if not glob.glob(folder + "/*_*/")]

    def assert_no_folder_left(self):
        """Once every job of the test is over."""
        if all(job.ended() for job in self.jobs) and not any(job.processes() for job in self.jobs):
            wait_until(lambda: not self.folders_left(), lambda: f"the end of {self.folders_left()}", PROMISED)

    def assert_nothing_of_ours_left(self):
        """At the end of each test that has not failed before: no process, temporary folder or cgroup of its jobs."""
        if not self._outcome.success:
            return
        self.assert_nothing_left(*self.jobs)
        wait_until(lambda: not self.folders_left() + self.cgroup.left(),
                   lambda: f"the end of {self.folders_left() + self.cgroup.left()}", PROMISED)

    def report(self, text):
        print(f"  [{self.id().split('.')[-1]}] {text}", flush=True)

    # Workers.

    def arrivals(self, prefix="env"):
        """{file name: environment} of the workers that wrote theirs, see env_to()."""
        found = {}
        for name in os.listdir(self.dir):
            if name.startswith(prefix + "."):
                with open(self.path(name), "rb") as f:
                    pairs = [e.split("=", 1) for e in f.read().decode(errors="replace").split("\0") if e]
                found[name] = {p[0]: p[1] if len(p) > 1 else "" for p in pairs}
        return found

    def wait_for_workers(self, count, prefix="env", jobs=()):
        def text():
            return "\n".join([f"{count} workers' {prefix}, have {sorted(self.arrivals(prefix))}"] +
                             [job.text() for job in jobs])

        wait_until(lambda: len(self.arrivals(prefix)) >= count, text)
        found = sorted(self.arrivals(prefix).values(), key=lambda e: int(e["RANK"]))
        self.assertEqual(len(found), count, text())
        return found


# A shell's words that write the worker's environment under a name of its round, in one piece.
def env_to(prefix="env"):
    return (f'env -0 > "$D/tmp.$$" && mv "$D/tmp.$$" '
            f'"$D/{prefix}.$TORCHELASTIC_RESTART_COUNT.$WORLD_SIZE.$RANK.$$"; ')


# Until all workers of this round have written: who fails now stops none in the middle of it.
ALL_HERE = ('until [ $(ls "$D" | grep -c "^env.$TORCHELASTIC_RESTART_COUNT.") -ge $WORLD_SIZE ]; '
            'do sleep 0.01; done; ')

PASS_GATE = 'read _ < "$D/gate" || true; '


# A TCPStore client of 20 lines: what a worker's torch does first with MASTER_ADDR and MASTER_PORT.
STORE_CLIENT = """
import os, socket, struct
s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 20)
s.settimeout(20)
def text(b): return struct.pack("<Q", len(b)) + b
def take(n):
    b = b""
    while len(b) < n:
        piece = s.recv(n - len(b))
        assert piece, "the store hung up"
        b += piece
    return b
def get(key):
    s.sendall(bytes([CODES["get"]]) + text(key))
    return take(struct.unpack("<Q", take(8))[0])
def wait(key):
    s.sendall(bytes([CODES["wait"]]) + struct.pack("<Q", 1) + text(key))
    assert take(1) == b"\\0", "the store would not wait"
CODES = {"validate": 0, "set": 1, "get": 3, "wait": 6}
s.sendall(bytes([CODES["validate"]]) + struct.pack("<I", 0x3C85F7CE))
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
s.sendall(bytes([CODES["set"]]) + text(b"from%d" % rank) + text(b"hello of %d" % rank))
for peer in range(world):
    wait(b"from%d" % peer)
    assert get(b"from%d" % peer) == b"hello of %d" % peer
print("met", world, "ranks", flush=True)
"""


def shell(script):
    return ["/bin/sh", "-c", script]


def column(environments, name):
    return [e.get(name) for e in environments]


class Network:
    """Two network namespaces joined by a veth pair: two machines on a cable."""

    def __init__(self):
        stem = f"ddp{os.getpid()}"
        self.names = [stem + "a", stem + "b"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]

    @staticmethod
    def missing():
        if os.geteuid() != 0:
            return "network namespaces need root"
        if not shutil.which("ip"):
            return "there is no ip command (package iproute2)"
        probe = f"ddp{os.getpid()}p"
        made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, timeout=20)
        if made.returncode != 0:
            return f"network namespaces cannot be made: {made.stderr.strip()}"
        subprocess.run(["ip", "netns", "del", probe], timeout=20)
        return None

    def __enter__(self):
        a, b = self.names
        for name in self.names:
            self._ip("netns", "add", name)
            self._ip("-n", name, "link", "set", "lo", "up")
        self._ip("link", "add", "wire", "netns", a, "type", "veth", "peer", "name", "wire", "netns", b)
        for name, address in zip(self.names, self.addresses):
            self._ip("-n", name, "addr", "add", address + "/24", "dev", "wire")
            self._ip("-n", name, "link", "set", "wire", "up")
        return self

    def cut(self):
        self._ip("-n", self.names[0], "link", "set", "wire", "down")

    def mend(self):
        self._ip("-n", self.names[0], "link", "set", "wire", "up")

    def deafen(self, index):
        """Cuts the cable in one direction: what the other machine sends to this one goes to a card that is not there."""
        self._ip("-n", self.names[1 - index], "neigh", "replace", self.addresses[index], "lladdr", "02:00:00:00:00:99",
                 "dev", "wire", "nud", "permanent")

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, timeout=20)

    @staticmethod
    def _ip(*argv):
        subprocess.run(["ip", *argv], check=True, timeout=20)


class TwoMachinesCase(DdprunCase):
    """Each test has a Network of its own, self.net."""

    def setUp(self):
        super().setUp()
        self.net = Network()
        self.addCleanup(self.net.__exit__)
        self.net.__enter__()
        self.addCleanup(lambda: [job.end() for job in self.jobs])  # Before their network goes.


def skip_all(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def main():
    """Runs the tests of the calling file: exit code 0, 1, or 77 if every one was skipped. With DDPRUN_FAILFAST
    in the environment the first failure ends it."""
    if not os.access(DDPRUN, os.X_OK):
        skip_all(f"DDPRUN_BIN={BIN!r} holds no ddprun; ctest sets it to the build's bin folder")
    if "DDPRUN_TEST_OLD_KERNEL" in os.environ and not old_kernel.become():
        skip_all("this kernel has no seccomp filters, or its machine's calls are not known")
    program = unittest.main(exit=False, verbosity=2, failfast="DDPRUN_FAILFAST" in os.environ)
    result = program.result
    for test, reason in result.skipped:
        print(f"skipped {test}: {reason}")
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if result.testsRun and len(result.skipped) == result.testsRun else 0)
