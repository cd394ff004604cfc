"""DDPRUN_PORT_RANGE: two machines whose firewalls let through the endpoint and the range, and nothing else."""

import os
import shutil
import subprocess
import unittest

import ddprun_case
from ddprun_case import PACKAGE, Network, STARTED_RANK, TwoMachinesCase, main, shell, skip_all

ENDPOINT, RANGE = 29400, "29500-29519"
TOKEN = {"DDPRUN_TOKEN": "a token of the tests"}
IPTABLES = shutil.which("iptables", path="/usr/sbin:/sbin:/usr/bin:/bin")


def missing():
    if not IPTABLES:
        return "there is no iptables (package iptables)"
    return Network.missing()


class Ports(TwoMachinesCase):
    def setUp(self):
        super().setUp()
        for name in self.net.names:
            for rule in (["-i", "lo", "-j", "ACCEPT"], ["-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"],
                         ["-p", "tcp", "--dport", str(ENDPOINT), "-j", "ACCEPT"],
                         ["-p", "tcp", "--dport", RANGE.replace("-", ":"), "-j", "ACCEPT"], ["-p", "tcp", "-j", "DROP"]):
                done = subprocess.run(["ip", "netns", "exec", name, IPTABLES, "-w", "-A", "INPUT", *rule],
                                      capture_output=True, text=True, timeout=20, check=False)
                if done.returncode != 0:
                    self.skipTest(f"iptables: {done.stderr.strip()}")

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
                jobs = self.nodes(*memory, STARTED_RANK[1], env={"DDPRUN_PORT_RANGE": RANGE, "DDPRUN_BACKEND": "cpu"})
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
        job = self.start("true", env={"DDPRUN_PORT_RANGE": "9-8"})
        self.assertNotEqual(job.wait(), 0, job.text())
        self.assertIn("DDPRUN_PORT_RANGE=9-8 is no range of ports such as 29500-29599", job.err())
        jobs = self.nodes(STARTED_RANK[1], env={"DDPRUN_PORT_RANGE": "29500-29502", "DDPRUN_BACKEND": "gloo"})
        for job in jobs:
            self.assertNotEqual(job.wait(), 0, job.text())
        self.assertIn("each port of DDPRUN_PORT_RANGE=29500-29502 is taken", "".join(job.err() for job in jobs))


if __name__ == "__main__":
    if missing():
        skip_all(missing())
    main()
