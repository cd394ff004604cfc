"""Servers that the store benchmarks compare, each started here and ended here, and what they are asked in."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from side_by_side import ROOT, free_port

INTEROP = os.path.join(ROOT, "tests", "interop")
sys.path.insert(0, INTEROP)
from torch_pythons import torch_pythons

TORCH_STORE = os.path.join(INTEROP, "torch_store.py")


def in_a_network_of_its_own():
    """Starts the calling script again in a new network namespace, where root may.

    There all use the same congestion control, and a look-up in DNS fails at once: TCPStore 2.15 asks for the name of each
    client that connects, and answers nobody meanwhile.
    """
    if os.environ.get("DDPRUN_BENCH_NETWORK") or os.geteuid() != 0 or not shutil.which("unshare"):
        return
    os.environ["DDPRUN_BENCH_NETWORK"] = "own"
    script = ('ip link set lo up && echo reno > /proc/sys/net/ipv4/tcp_congestion_control; exec "$0" "$@"')
    os.execvp("unshare", ["unshare", "--net", "/bin/sh", "-c", script, sys.executable, *sys.argv])


class Server:
    """A server process on a loopback port, on one CPU if asked."""

    def __init__(self, protocol, argv, port=None, cpu=None, env=None):
        self.protocol = protocol
        self._folder = tempfile.TemporaryDirectory()
        pin = (lambda: os.sched_setaffinity(0, {cpu})) if cpu is not None else None
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self._folder.name,
                                        stderr=subprocess.DEVNULL, preexec_fn=pin, text=True,
                                        env={**os.environ, **(env or {})})
        if port is None:
            port = self.process.stdout.readline().strip()
            if not port.isdigit():
                raise FileNotFoundError(f"{argv[0]}: {port}")
        self.port = int(port)

    def cpu_seconds(self):
        """What all its threads have used so far."""
        used = 0
        folder = f"/proc/{self.process.pid}/task"
        for task in os.listdir(folder):
            with open(f"{folder}/{task}/schedstat", encoding="ascii") as f:
                used += int(f.read().split()[0])
        return used / 1e9

    def end(self):
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait(20)
        self._folder.cleanup()


def wait_until_listening(server):
    for _ in range(2000):
        try:
            socket.create_connection(("127.0.0.1", server.port)).close()
            return server
        except OSError:
            time.sleep(0.01)
    raise TimeoutError(f"nobody listens on port {server.port}")


def redis(cpu=None):
    port = free_port()
    return wait_until_listening(Server("redis", ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                                                 "--appendonly", "no", "--tcp-backlog", "4096"], port, cpu))


def etcd(cpu=None):
    port, peer = free_port(), free_port()
    name = f"http://127.0.0.1:{port}"
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="ddprun-bench-etcd-")
    server = Server("etcd", ["etcd", "--data-dir", folder, "--listen-client-urls", name, "--advertise-client-urls", name,
                             "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--log-level", "error"], port, cpu)
    plain = server.end
    server.end = lambda: (plain(), shutil.rmtree(folder, ignore_errors=True))
    return wait_until_listening(server)


def stores(build, cpu=None, before=None):
    """{name: function that starts it}. `before`: another build of store_serve, to compare with."""
    def ours(program, protocol):
        return lambda: Server(protocol, [program], cpu=cpu)

    def theirs(python, backend, protocol):
        return lambda: Server(protocol, [python, "-W", "ignore", TORCH_STORE, backend], cpu=cpu)

    program = os.path.join(build, "tests", "store_serve")
    found = {"ddprun": ours(program, "new"), "ddprun, 1.13's dialect": ours(program, "old")}
    if before:
        found["ddprun before"] = ours(before, "new")
    for torch in torch_pythons():
        if torch.old:
            found[f"TCPStore {torch.version}"] = theirs(torch.python, "legacy", "old")
        else:
            found[f"TCPStore {torch.version}"] = theirs(torch.python, "libuv", "new")
            found[f"TCPStore {torch.version} legacy"] = theirs(torch.python, "legacy", "new")
    if shutil.which("redis-server"):
        found["redis"] = lambda: redis(cpu)
    return found
