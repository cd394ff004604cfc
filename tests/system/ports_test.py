"""Two machines whose firewalls let through the endpoint and what DDPRUN_PORT_RANGE names, or one port alone, or only what
is translated."""

import os
import shutil
import signal
import subprocess
import sys

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


if __name__ == "__main__":
    if missing():
        skip_all(missing())
    main()
