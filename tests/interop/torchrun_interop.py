"""Unmodified torchrun through `ddprun-rendezvous --c10d-port`: 2 agents with 2 workers each, one of which fails once.

For Debian's PyTorch and each that DDPRUN_TEST_TORCH_PYTHONS names; skipped where there is none.
"""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import BIN, DdprunCase, skip_all, wait_until
from torch_pythons import torch_pythons

WORKER = """
import os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
numbers = torch.full((1000,), float(rank + 1))
dist.all_reduce(numbers)
os.write(1, b"sum of %d is %d\\n" % (world, numbers.unique().item()))  # Whole: torchrun gives all one descriptor.
if not os.path.exists(os.environ["D"] + "/failed"):
    dist.barrier()
    if rank == 1:
        open(os.environ["D"] + "/failed", "w").close()
        os._exit(7)
    time.sleep(600)  # The agent ends it.
dist.barrier()  # Whoever ends first may hold the workers' store.
dist.destroy_process_group()
"""

TORCHES = torch_pythons()
SECONDS = 120  # torchrun's own second-long waits, several times over, on a loaded machine.


class TorchrunThroughTheDaemon(DdprunCase):
    def daemon(self, *options):
        daemon = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--no-auth", "--port", "0",
                                     "--c10d-port", "0", *options])
        return daemon, daemon.wait_for(r"c10d rendezvous on 127\.0\.0\.1:(\d+), without a token").group(1)

    def agents(self, torch, port, run="job", script=WORKER, restarts=1, backend="c10d", options=()):
        path = self.path("worker.py")
        with open(path, "w", encoding="ascii") as f:
            f.write(script)
        # Debian's 1.13 cannot start without -r and -t; newer ones name this machine by its hostname without --local_addr.
        own = ["-r", "9:1", "-t", "9:1"] if torch.old else ["--local_addr", "127.0.0.1"]
        argv = [torch.python, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "2",
                "--rdzv_backend", backend, "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", run,
                "--max_restarts", str(restarts), "--monitor_interval", "0.1", *own, *options, path]
        env = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
               # Since 2.5 the agent's own store for its workers, which is not ours, keeps the keys of the attempt before:
               # whoever comes first after a restart connects to a dead rank. This has rank 0 open a new one.
               "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        if backend == "ddprun":
            env["PYTHONPATH"] = self.installed()
        return [self.start_program(argv, env=env) for _ in range(2)]

    def installed(self):
        """A PYTHONPATH with the package and the entry points that its wheel has."""
        root = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
        folder = self.path("site/ddprun-0.dist-info")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(root, "pyproject.toml"), encoding="utf-8") as f:
            groups = re.findall(r'(?ms)^\[project\.entry-points\."([^"]+)"\]\n(.*?)\n\n', f.read())
        with open(folder + "/entry_points.txt", "w", encoding="ascii") as f:
            f.write("\n".join(f"[{group}]\n" + lines.replace('"', "") + "\n" for group, lines in groups))
        with open(folder + "/METADATA", "w", encoding="ascii") as f:
            f.write("Metadata-Version: 2.1\nName: ddprun\nVersion: 0\n")
        return os.pathsep.join([self.path("site"), os.path.join(root, "python")])

    def all_end_well(self, agents):
        def texts():
            return "\n".join(agent.text() for agent in agents)

        wait_until(lambda: all(agent.ended() for agent in agents), texts, SECONDS)
        self.assertEqual([agent.wait() for agent in agents], [0, 0], texts())
        self.assert_nothing_left(*agents)

    def test_two_agents_and_a_worker_that_fails_once(self):
        for torch in TORCHES:
            with self.subTest(torch=torch.version):
                daemon, port = self.daemon()
                if os.path.exists(self.path("failed")):
                    os.unlink(self.path("failed"))
                agents = self.agents(torch, port)
                self.all_end_well(agents)
                said = "".join(agent.out() for agent in agents)
                self.assertEqual(said.count("sum of 4 is 10\n"), 8, "\n".join(a.text() for a in agents))
                self.assertTrue(os.path.exists(self.path("failed")))
                daemon.signal(15)
                self.finish(daemon)
                self.report(f"torchrun {torch.version}: 4 workers twice, one failure between")

    def newest(self):
        """PyTorch takes rendezvous backends of others from 2.4 on."""
        found = [torch for torch in TORCHES if tuple(map(int, torch.version.split(".")[:2])) >= (2, 4)]
        if not found:
            raise unittest.SkipTest("no PyTorch here takes rendezvous backends of others")
        return found[-1]

    def test_the_backend_ddprun(self):
        daemon, port = self.daemon()
        agents = self.agents(self.newest(), port, backend="ddprun")
        self.all_end_well(agents)
        said = "".join(agent.out() for agent in agents)
        self.assertEqual(said.count("sum of 4 is 10\n"), 8, "\n".join(a.text() for a in agents))
        self.assertNotIn("plugin", "".join(agent.err() for agent in agents))
        daemon.signal(15)
        self.finish(daemon)

    def test_the_backend_ddprun_hosts_nothing_itself(self):
        port = ddprun_case.free_port()
        agents = self.agents(self.newest(), port, backend="ddprun", options=["--rdzv_conf", "read_timeout=1"])
        wait_until(lambda: all(agent.ended() for agent in agents), lambda: agents[0].text(), SECONDS)
        for agent in agents:
            self.assertEqual(agent.wait(), 1, agent.text())
            self.assertRegex(agent.err(), rf"no rendezvous daemon answers at 127\.0\.0\.1:{port} \(.*\); start it there: "
                                          rf"ddprun-rendezvous --c10d-port {port} ")


if __name__ == "__main__":
    if not TORCHES:
        skip_all("there is no PyTorch: neither Debian's nor one that DDPRUN_TEST_TORCH_PYTHONS names")
    ddprun_case.main()
