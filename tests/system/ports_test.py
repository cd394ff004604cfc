"""Two machines whose firewalls let through the endpoint and what DDPRUN_PORT_RANGE names, or one port alone, or only what
is translated."""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import ddprun_case
from ddprun_case import (PACKAGE, Network, STARTED_RANK, STORE_CLIENT, TwoMachinesCase, free_port, main, shell, skip_all,
                         wait_until)

ENDPOINT, RANGE = 29400, "29500-29519"
TOKEN = {"DDPRUN_TOKEN": "a token of the tests"}
IPTABLES = shutil.which("iptables", path="/usr/sbin:/sbin:/usr/bin:/bin")


def missing():
    if not IPTABLES:
        return "there is no iptables (package iptables)"
    return Network.missing()


class Firewalled(TwoMachinesCase):
    def iptables(self, name, *rule):
        done = subprocess.run(["ip", "netns", "exec", name, IPTABLES, "-w", *rule], capture_output=True, text=True,
                              timeout=20, check=False)
        if done.returncode != 0:
            self.skipTest(f"iptables: {done.stderr.strip()}")

    def close_all_but(self, *ports):
        for name in self.net.names:
            for rule in (["-i", "lo", "-j", "ACCEPT"], ["-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"],
                         *(["-p", "tcp", "--dport", port, "-j", "ACCEPT"] for port in ports), ["-p", "tcp", "-j", "DROP"]):
                self.iptables(name, "-A", "INPUT", *rule)


class Ports(Firewalled):
    def setUp(self):
        super().setUp()
        self.close_all_but(str(ENDPOINT), RANGE.replace("-", ":"))

    def nodes(self, *argv, env=None):
        """Both nodes of a run; each has two workers."""
        common = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint", f"{self.net.addresses[0]}:{ENDPOINT}"]
        return [self.start(*common, "--node-rank", rank, *argv, netns=name, env={**TOKEN, **PACKAGE, **(env or {})})
                for rank, name in enumerate(self.net.names)]

    def listening(self, name):
        """The ports at which something listens on that machine for the others."""
        said = subprocess.run(["ip", "netns", "exec", name, "ss", "-Hltn"], capture_output=True, text=True, timeout=20,
                              check=True).stdout
        places = [line.split()[3].rpartition(":") for line in said.splitlines()]
        return {int(port) for host, _, port in places if not host.startswith(("127.", "[::1]"))}

    def test_a_run_meets_and_computes_through_the_range(self):
        for memory in ([], ["--memory-folder", "16M"]):
            with self.subTest(memory=memory):
                jobs = self.nodes("--port-range", RANGE, *memory, STARTED_RANK[1], env={"DDPRUN_BACKEND": "cpu"})
                for job in jobs:
                    self.finish(job)
                said = "".join(job.out() for job in jobs)
                self.assertEqual(said.count(" of 4 local"), 4, said)
                self.assertEqual(said.count(": sum 6"), 4, said)

    def test_nothing_else_listens(self):
        gate = self.gate()
        jobs = self.nodes(*shell(ddprun_case.env_to() + ddprun_case.PASS_GATE), env={"DDPRUN_PORT_RANGE": RANGE})
        self.wait_for_workers(4, jobs=jobs)
        first, last = map(int, RANGE.split("-"))
        for name in self.net.names:
            self.assertEqual({port for port in self.listening(name) if not first <= port <= last} - {ENDPOINT}, set())
        gate.open()
        for job in jobs:
            self.finish(job)

    def test_without_the_range_the_firewall_is_in_the_way(self):
        """Or the tests above would prove nothing."""
        script = self.path("short.py")
        with open(script, "w", encoding="ascii") as f:
            f.write("import ddprun\nddprun.init(init_timeout=3)\n")
        jobs = self.nodes(script)
        self.assertNotEqual(jobs[1].wait(), 0, jobs[1].text())
        jobs[0].wait()

    def test_a_range_that_is_none_or_too_small_is_named(self):
        for argv, env, source in ((["--port-range", "9-8"], {}, "--port-range"), ([], {"DDPRUN_PORT_RANGE": "9-8"}, "DDPRUN_PORT_RANGE")):
            job = self.run_ddprun(*argv, "true", env=env, code=2)
            self.assertIn(f"{source} '9-8': give the first and the last port from 1 to 65535, such as 29500-29599", job.err())
        jobs = self.nodes(STARTED_RANK[1], env={"DDPRUN_PORT_RANGE": "29500-29502", "DDPRUN_BACKEND": "gloo"})
        for job in jobs:
            self.assertNotEqual(job.wait(), 0, job.text())
        self.assertIn("each port of DDPRUN_PORT_RANGE=29500-29502 is taken", "".join(job.err() for job in jobs))


class StaticCommandLines(Firewalled):
    """torchrun's static command lines need one open port."""

    # After they have met, the ranks of the first round wait for the gate, and one of them fails once all are through.
    AT_GATE = "import sys" + STORE_CLIENT.replace('print("met"', """
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
if restarts == "0":
    open(os.environ["D"] + f"/here{rank}", "w").close()
    with open(os.environ["D"] + "/gate") as gate:
        gate.read(1)
s.sendall(bytes([4]) + text(b"ranks of this round") + struct.pack("<q", 1))
assert struct.unpack("<q", take(8))[0] <= world, "this is the store of an earlier round"
s.sendall(bytes([CODES["set"]]) + text(b"through%d" % rank) + text(b"yes"))
if restarts == "0":
    for peer in range(world):
        wait(b"through%d" % peer)
    sys.exit(3 if rank == 3 else 0)
print("met\"""")

    def nodes(self, *argv, addresses=None):
        python = ["--no-python", sys.executable, "-c"]
        return [self.start("--nnodes", "2", "--nproc-per-node", "2", "--node-rank", rank, "--master-addr", address,
                           "--master-port", ENDPOINT, *argv[:-1], *python, argv[-1], netns=name, env=TOKEN)
                for rank, (name, address) in enumerate(zip(self.net.names, addresses or [self.net.addresses[0]] * 2))]

    def test_all_meet_through_the_one_port(self):
        self.close_all_but(str(ENDPOINT))
        jobs = self.nodes(STORE_CLIENT)
        for job in jobs:
            self.finish(job)
        self.assertEqual("".join(job.out() for job in jobs).count("met 4 ranks"), 4)

    def test_a_node_that_joins_by_the_endpoint_uses_that_port_too(self):
        self.close_all_but(str(ENDPOINT))
        python = ["--no-python", sys.executable, "-c", STORE_CLIENT]
        endpoint = f"{self.net.addresses[0]}:{ENDPOINT}"
        jobs = [self.start("--nnodes", "2", *line, *python, netns=name, env=TOKEN) for name, line in
                zip(self.net.names, (["--node-rank", "0", "--master-port", ENDPOINT], ["--rdzv-endpoint", endpoint]))]
        for job in jobs:
            self.finish(job)
        self.assertEqual("".join(job.out() for job in jobs).count("met 2 ranks"), 2)

    def test_a_restart_has_a_new_store_there_and_the_daemon_s_death_ends_no_connection(self):
        self.close_all_but(str(ENDPOINT))
        gate = self.gate()
        jobs = self.nodes("--max-restarts", "1", self.AT_GATE)
        wait_until(lambda: all(os.path.exists(self.path(f"here{rank}")) for rank in range(4)), jobs[0].text)
        os.kill(jobs[0].daemon().pid, signal.SIGKILL)
        jobs[0].wait_for("the rendezvous daemon .* starting it again")
        gate.open()
        for job in jobs:
            self.finish(job)
        self.assertEqual(jobs[1].out().count("met 4 ranks"), 2, jobs[1].text())

    def test_ranks_that_come_while_their_node_connects_anew_are_let_in(self):
        gate = self.gate()
        late = STORE_CLIENT.replace("s.settimeout(20)", """
open(os.environ["D"] + "/connected" + os.environ["RANK"], "w").close()
s.settimeout(20)""")
        early = """
import os
open(os.environ["D"] + "/here" + os.environ["RANK"], "w").close()
with open(os.environ["D"] + "/gate") as gate:
    gate.read(1)
"""
        jobs = self.nodes(early + late)
        wait_until(lambda: all(os.path.exists(self.path(f"here{rank}")) for rank in range(4)), jobs[0].text)
        (agent,) = jobs[1].agents()
        os.kill(agent.pid, signal.SIGSTOP)
        os.kill(jobs[0].daemon().pid, signal.SIGKILL)
        gate.open()
        wait_until(lambda: all(os.path.exists(self.path(f"connected{rank}")) for rank in range(4)), jobs[1].text)
        os.kill(agent.pid, signal.SIGCONT)
        for job in jobs:
            self.finish(job)
        self.assertEqual("".join(job.out() for job in jobs).count("met 4 ranks"), 4)

    def test_a_node_behind_a_translation_of_addresses_uses_the_address_that_it_was_given(self):
        outside = "10.77.1.1"  # Of the first machine, as the second one has to call it.
        self.iptables(self.net.names[1], "-t", "nat", "-A", "OUTPUT", "-d", outside, "-p", "tcp", "--dport", str(ENDPOINT),
                      "-j", "DNAT", "--to-destination", self.net.addresses[0])
        subprocess.run(["ip", "-n", self.net.names[1], "route", "add", outside, "dev", "wire"], check=True, timeout=20)
        self.close_all_but(str(ENDPOINT))
        jobs = self.nodes(STORE_CLIENT, addresses=[self.net.addresses[0], outside])
        for job in jobs:
            self.finish(job)
        self.assertEqual("".join(job.out() for job in jobs).count("met 4 ranks"), 4)

    def test_a_node_that_hosts_behind_a_router_advertises_the_router_s_address(self):
        outside, store = "10.77.1.1", str(free_port())
        for port in (str(ENDPOINT), store):
            self.iptables(self.net.names[1], "-t", "nat", "-A", "OUTPUT", "-d", outside, "-p", "tcp", "--dport", port,
                          "-j", "DNAT", "--to-destination", self.net.addresses[0])
        subprocess.run(["ip", "-n", self.net.names[1], "route", "add", outside, "dev", "wire"], check=True, timeout=20)
        common = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint", f"{outside}:{ENDPOINT}"]
        python = ["--no-python", sys.executable, "-c", 'import os; print("at", os.environ["MASTER_ADDR"])\n' + STORE_CLIENT]
        hosts = ["--rdzv-conf", "is_host=1", "--master-port", store]
        job = self.start(*common, *hosts, "true", netns=self.net.names[0], env=TOKEN)
        self.assertEqual(job.wait(), 2, job.text())
        self.assertIn(f"or --advertise-addr {outside} if that leads here from outside", job.err())
        jobs = [self.start(*common, *hosts, "--advertise-addr", outside, *python, netns=self.net.names[0], env=TOKEN),
                self.start(*common, *python, netns=self.net.names[1], env=TOKEN)]
        for job in jobs:
            self.finish(job)
        self.assertEqual("".join(job.out() for job in jobs).count("met 4 ranks"), 4)
        self.assertEqual([job.out().count(f"at {address}") for job, address in zip(jobs, ("127.0.0.1", outside))], [2, 2])

    def test_a_stranger_is_not_let_in(self):
        gate = self.gate()
        jobs = self.nodes(self.AT_GATE)
        wait_until(lambda: all(os.path.exists(self.path(f"here{rank}")) for rank in range(4)), jobs[0].text)
        stranger = "10.77.0.77"
        subprocess.run(["ip", "-n", self.net.names[1], "addr", "add", stranger + "/24", "dev", "wire"], check=True, timeout=20)
        attempt = ("import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20, (sys.argv[3], 0)); "
                   "s.sendall(bytes([0]) + (0x3C85F7CE).to_bytes(4, 'little')); s.sendall(bytes([7])); "
                   "s.settimeout(20); print(len(s.recv(8)))")
        said = subprocess.run(["ip", "netns", "exec", self.net.names[1], sys.executable, "-c", attempt,
                               self.net.addresses[0], str(ENDPOINT), stranger],
                              capture_output=True, text=True, timeout=30, check=False)
        self.assertRegex(said.stdout + said.stderr, r"^0\n|ConnectionResetError")
        jobs[0].wait_for(f"refused {stranger}, which wants the workers' store, but is no node")
        gate.open()
        for job in jobs:
            job.wait()


class Relayed(Firewalled):
    """Nodes that reach the endpoint's port and nothing else get the rest through it."""

    # Writes a file into the memory folder, says what it found there, and waits.
    KEEPER = """
        cat "$DDPRUN_MEMORY"/rank-* 2>/dev/null | sed "s/^/found /"
        echo "of $RANK" > "$DDPRUN_MEMORY/rank-$RANK"; echo "up $RANK"
        while [ ! -e "$D/go" ]; do sleep 0.02; done
    """

    def setUp(self):
        super().setUp()
        self.close_all_but(str(ENDPOINT))
        self.memory = os.path.join("/dev/shm", f"ddprun-relay-test-{os.getpid()}-{time.monotonic_ns()}")
        os.mkdir(self.memory)
        self.addCleanup(shutil.rmtree, self.memory, ignore_errors=True)

    def keeper(self, machine, nnodes="2", folder="x"):
        place = os.path.join(self.memory, folder)
        os.makedirs(place, exist_ok=True)
        return self.start("--nnodes", nnodes, "--rdzv-endpoint", f"{self.net.addresses[0]}:{ENDPOINT}", "--max-restarts", "3",
                          "--rdzv-conf", f"is_host={int(machine == 0 and folder == 'a')},join_timeout=60",
                          "--memory-folder", f"16M,at={place}", *shell(self.KEEPER), netns=self.net.names[machine], env=TOKEN)

    def copies(self, folder):
        found = {}
        for path in glob.glob(f"{self.memory}/{folder}/ddprun-memory-*/node*/copies/*/rank-*"):
            with open(path, encoding="ascii") as f:
                found[os.path.basename(path)] = f.read()
        return found

    def test_memory_folders_are_copied_and_fetched_through_the_endpoint_s_port(self):
        jobs = [self.keeper(0, folder="a"), self.keeper(1, folder="b")]

        def text():
            return "".join(job.text() for job in jobs) + str(self.copies("a")) + str(self.copies("b"))

        wait_until(lambda: self.copies("a") == {"rank-1": "of 1\n"} and self.copies("b") == {"rank-0": "of 0\n"}, text)
        for job in jobs:
            self.assertRegex(job.err(), r"the memory folder is copied to \S+ through the rendezvous daemon: connecting to "
                                        r"10\.77\.0\.\d:\d+: no answer within")
        wait_until(lambda: all(node.get("memory", {}).get("relayed") for node in self.status(jobs[0])["runs"][0]["nodes"]), text)
        os.kill(jobs[1].pid, signal.SIGKILL)
        jobs[1].wait()
        jobs[1] = self.keeper(1, folder="c")
        wait_until(lambda: "up 1" in jobs[1].out(), text)
        self.assertIn("found of 1", jobs[1].out(), text())
        self.assertRegex(jobs[1].err(), r"was fetched from \S+ through the rendezvous daemon: 1 files")
        open(self.path("go"), "w", encoding="ascii").close()
        for job in jobs:
            self.finish(job)

    def status(self, job):
        said = subprocess.run(["ip", "netns", "exec", self.net.names[0], os.path.join(ddprun_case.BIN, "ddprunctl"), "-e",
                               f"{self.net.addresses[0]}:{ENDPOINT}", "top", "--json"], capture_output=True, text=True,
                              env={**os.environ, **TOKEN}, timeout=30, check=False)
        self.assertEqual(said.returncode, 0, said.stderr + job.text())
        return json.loads(said.stdout)

    def ranks(self, *argv, program=(STARTED_RANK[1],), env=None):
        common = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint", f"{self.net.addresses[0]}:{ENDPOINT}"]
        return [self.start(*common, "--node-rank", rank, *argv, *program, netns=name,
                           env={**TOKEN, **PACKAGE, "DDPRUN_HOST": name, **(env or {})}) for rank, name in enumerate(self.net.names)]

    def finish_all(self, jobs, code=0):
        for job in jobs:
            self.finish(job, code)
        return "".join(job.out() for job in jobs)

    def test_ranks_compute_through_the_endpoint_s_port(self):
        for backend in ("auto", "gloo"):
            with self.subTest(backend=backend):
                said = self.finish_all(self.ranks("--one-port", env={"DDPRUN_BACKEND": backend}))
                self.assertEqual(said.count(": sum 6"), 4, said)

    def test_the_store_of_a_node_that_does_not_host_is_reached_too(self):
        """Node rank 0, whose agent has the store, is not the machine of the endpoint."""
        common = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint", f"{self.net.addresses[0]}:{ENDPOINT}", "--one-port"]
        jobs = [self.start(*common, "--node-rank", 1 - machine, "--rdzv-conf", f"is_host={1 - machine}", STARTED_RANK[1], netns=name,
                           env={**TOKEN, **PACKAGE, "DDPRUN_HOST": name}) for machine, name in enumerate(self.net.names)]
        said = self.finish_all(jobs)
        self.assertEqual(said.count(": sum 6"), 4, said)

    def test_ranks_that_cannot_reach_each_other_are_connected_without_a_flag(self):
        """The workers' store is at the endpoint's port, as with a static command line."""
        common = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", self.net.addresses[0], "--master-port", ENDPOINT]
        jobs = [self.start(*common, "--node-rank", rank, STARTED_RANK[1], netns=name, env={**TOKEN, **PACKAGE, "DDPRUN_HOST": name})
                for rank, name in enumerate(self.net.names)]
        said = self.finish_all(jobs)
        self.assertEqual(said.count(": sum 6"), 4, said)

    # The last rank dies once in the middle, and all begin anew.
    TRAINS = """
import array, os, signal
import ddprun
with ddprun.init(init_timeout=50) as group:
    for step in range(20):
        total = array.array("f", [group.rank] * 100000)
        group.all_reduce(total)
        assert total[-1] == 6, total[-1]
        if step == 10 and group.rank == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    os.write(1, b"trained\\n")
"""

    def test_a_run_through_one_port_survives_a_death(self):
        script = self.path("trains.py")
        with open(script, "w", encoding="ascii") as f:
            f.write(self.TRAINS)
        said = self.finish_all(self.ranks("--one-port", "--max-restarts", "1", program=(script,)))
        self.assertEqual(said.count("trained"), 4, said)

    # The first round computes until it fails.
    WAITS = """
import array, os
import ddprun
with ddprun.init(init_timeout=50) as group:
    total = array.array("f", [group.rank])
    group.all_reduce(total)
    os.write(1, b"up\\n")
    while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        group.all_reduce(total)
"""

    def test_the_daemon_s_death_costs_a_run_through_one_port_a_restart(self):
        script = self.path("waits.py")
        with open(script, "w", encoding="ascii") as f:
            f.write(self.WAITS)
        jobs = self.ranks("--one-port", "--max-restarts", "1", program=(script,))
        wait_until(lambda: sum(job.out().count("up") for job in jobs) == 4, jobs[0].text)
        os.kill(jobs[0].daemon().pid, signal.SIGKILL)
        said = self.finish_all(jobs)
        self.assertEqual(said.count("up"), 8, said)

    def test_one_port_needs_a_token(self):
        job = self.run_ddprun("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-conf", "auth=none", "--one-port",
                              "true", code=2)
        self.assertIn("--one-port needs the run's token", job.err())


class Unreachable(Firewalled):
    """Without a flag the workers wait for minutes: within seconds ddprun names the closed way, and again in the verdict."""

    # Waits like a program that does not reach its store; rank 1 gives up as PyTorch does, when it is told to.
    WAITS = """while [ ! -e "$D/go" ]; do sleep 0.02; done
        if [ $RANK = 1 ]; then
            echo "DistNetworkError: The client socket has timed out after 300000ms while trying to connect" >&2; exit 1
        fi; exec sleep 600"""

    def close(self, name):
        """What comes in from elsewhere, but for the endpoint."""
        for rule in (["-i", "lo", "-j", "ACCEPT"], ["-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"],
                     ["-p", "tcp", "--dport", str(ENDPOINT), "-j", "ACCEPT"], ["-p", "tcp", "-j", "DROP"]):
            self.iptables(name, "-A", "INPUT", *rule)

    def nodes(self):
        return [self.start("--nnodes", "2", "--rdzv-endpoint", f"{self.net.addresses[0]}:{ENDPOINT}", "--node-rank", rank,
                           *shell(self.WAITS), netns=name, env=TOKEN) for rank, name in enumerate(self.net.names)]

    def is_named(self, jobs, node, line, cure="--one-port"):
        """The node reports it while all wait, and both have it in their verdict."""
        said = jobs[node].wait_for(r"warning: (.*does not reach .*)\n").group(1)
        self.assertRegex(said, line)
        self.assertIn(cure, said)
        with open(self.path("go"), "w", encoding="ascii"):
            pass
        for job in jobs:
            self.finish(job, 1)
            self.assertEqual(job.err().count(said), 2 if job is jobs[node] else 1, job.text())

    def test_a_store_behind_a_firewall(self):
        self.close(self.net.names[0])
        self.is_named(self.nodes(), 1, rf"the workers' store on \S+ at {self.net.addresses[0]} port \d+ \(no answer within 5 s\): "
                                       rf"port {ENDPOINT} there is open")

    def test_a_firewall_that_lets_nothing_in_to_the_other_node(self):
        self.close(self.net.names[1])
        self.is_named(self.nodes(), 0, rf"at {self.net.addresses[1]} port \d+ \(no answer within 5 s\): .* but not the other way")

    def test_what_can_be_reached_is_not_mentioned(self):
        jobs = self.nodes()
        with open(self.path("go"), "w", encoding="ascii"):
            pass
        for job in jobs:
            self.finish(job, 1)
            self.assertNotIn("does not reach", job.err())


class Natted(ddprun_case.DdprunCase):
    """Two nodes behind routers of their own, with one address, and one that both reach at one port."""

    def ip(self, *argv):
        subprocess.run(["ip", *argv], check=True, timeout=20)

    def setUp(self):
        super().setUp()
        stem = f"ddpn{os.getpid()}"
        self.names = [stem + name for name in ("a", "b", "c")]
        routers = [stem + name for name in ("rb", "rc")]
        self.addCleanup(lambda: [subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, timeout=20, check=False)
                                 for name in self.names + routers])
        self.addCleanup(lambda: [job.end() for job in self.jobs])
        for name in self.names + routers:
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
        public = self.names[0]
        self.ip("-n", public, "link", "add", "public", "type", "bridge")
        self.ip("-n", public, "addr", "add", "10.99.0.1/24", "dev", "public")
        self.ip("-n", public, "link", "set", "public", "up")
        for i, (router, inner) in enumerate(zip(routers, self.names[1:])):
            self.cable(public, f"port{i}", "", router, "out", f"10.99.0.{i + 2}/24")
            self.ip("-n", public, "link", "set", f"port{i}", "master", "public")
            self.cable(router, "in", "192.168.1.1/24", inner, "wire", "192.168.1.2/24")
            self.ip("-n", inner, "route", "add", "default", "via", "192.168.1.1")
            self.run_in(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            self.run_in(router, IPTABLES, "-w", "-t", "nat", "-A", "POSTROUTING", "-o", "out", "-j", "MASQUERADE")
            self.run_in(router, IPTABLES, "-w", "-A", "FORWARD", "-i", "out", "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP")
        self.run_in(self.names[0], IPTABLES, "-w", "-A", "INPUT", "-i", "public", "-p", "tcp", "!", "--dport", str(ENDPOINT), "-m", "conntrack",
                    "--ctstate", "NEW", "-j", "DROP")

    def cable(self, a, a_end, a_address, b, b_end, b_address):
        self.ip("link", "add", a_end, "netns", a, "type", "veth", "peer", "name", b_end, "netns", b)
        for name, end, address in ((a, a_end, a_address), (b, b_end, b_address)):
            if address:
                self.ip("-n", name, "addr", "add", address, "dev", end)
            self.ip("-n", name, "link", "set", end, "up")

    def run_in(self, name, *argv):
        done = subprocess.run(["ip", "netns", "exec", name, *argv], capture_output=True, text=True, timeout=20, check=False)
        if done.returncode != 0:
            self.skipTest(f"{argv[0]}: {done.stderr.strip()}")

    def test_three_nodes_meet_compute_and_copy_their_memory(self):
        script = self.path("keeps.py")
        with open(script, "w", encoding="ascii") as f:
            f.write("""
import array, glob, os, time
import ddprun
with ddprun.init(init_timeout=50) as group:
    total = array.array("f", [group.rank])
    group.all_reduce(total)
    with open(os.environ["DDPRUN_MEMORY"] + f"/of-{group.rank}", "w") as f:
        f.write("kept")
    copies = array.array("f", [0])
    while copies[0] < 3:
        time.sleep(0.05)
        copies[0] = len(glob.glob(os.environ["DDPRUN_MEMORY_COPIES"] + "/*/of-*"))
        group.all_reduce(copies)
    os.write(1, f"sum {total[0]:g}, {copies[0]:g} copies\\n".encode())
""")
        jobs = [self.start("--nnodes", "3", "--rdzv-endpoint", f"10.99.0.1:{ENDPOINT}", "--rdzv-conf", f"is_host={int(i == 0)}", "--one-port",
                           "--memory-folder", "16M", script, netns=name, env={**TOKEN, **PACKAGE, "DDPRUN_HOST": name})
                for i, name in enumerate(self.names)]
        for job in jobs:
            self.finish(job)
        said = "".join(job.out() for job in jobs)
        self.assertEqual(said.count("sum 3, 3 copies"), 3, said)


    def test_a_node_behind_a_router_is_named(self):
        """Without a flag the node with the store cannot reach it."""
        common = ["--nnodes", "2", "--rdzv-endpoint", f"10.99.0.1:{ENDPOINT}"]
        jobs = [self.start(*common, "--rdzv-conf", f"is_host={int(i == 0)}", *shell("exec sleep 600"), netns=name, env=TOKEN)
                for i, name in enumerate(self.names[:2])]
        jobs[0].wait_for(r"does not reach \S+ at 192\.168\.1\.2 port \d+ \(.*\): the rendezvous daemon sees \S+ at 10\.99\.0\.2: a "
                         r"router translates its address \(NAT\); give every node --one-port, .* or \S+ --advertise-addr "
                         r"10\.99\.0\.2 if that router leads its ports there")
        jobs[1].wait_for(r"does not reach the workers' store on \S+ at 10\.99\.0\.1 port \d+ \(no answer within 5 s\)")
        jobs[0].signal(signal.SIGTERM)
        for job in jobs:
            self.finish(job, 143)


class TakenOver(ddprun_case.DdprunCase):
    """Through one port, on loopback: the daemon is none of the nodes', so that the store is always at a node."""

    SCRIPT = """
import array, os
import ddprun
with ddprun.init(init_timeout=50) as group:
    total = array.array("f", [1])
    group.all_reduce(total)
    os.write(1, f"rank {group.rank} of {total[0]:g}\\n".encode())
    while total[0] > 2:
        total[0] = 1
        group.all_reduce(total)
"""

    def test_a_node_that_gets_the_store_of_a_lost_one_uses_its_own(self):
        script, port = self.path("script.py"), free_port()
        with open(script, "w", encoding="ascii") as f:
            f.write(self.SCRIPT)
        daemon = self.start_program([os.path.join(ddprun_case.BIN, "ddprun-rendezvous"), "--port", str(port)], env=TOKEN)
        jobs = [self.start("--nnodes", "1:2", "--nproc-per-node", "2", "--max-restarts", "3", "--rdzv-endpoint", f"127.0.0.1:{port}",
                           "--rdzv-conf", "is_host=0,last_call_timeout=5", "--one-port", script, env={**TOKEN, **PACKAGE})
                for _ in range(2)]
        wait_until(lambda: all(job.out().count(" of 4") == 2 for job in jobs), lambda: daemon.text() + "".join(job.text() for job in jobs))
        jobs.sort(key=lambda job: "rank 0 of 4" not in job.out())
        os.kill(jobs[0].pid, signal.SIGKILL)
        self.assertEqual(jobs[1].wait(), 0, jobs[1].text())
        self.assertEqual(jobs[1].out().count(" of 2"), 2, jobs[1].text())


if __name__ == "__main__":
    if missing():
        skip_all(missing())
    main()
