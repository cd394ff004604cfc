"""Unmodified PyTorch under ddprun, and the workers' environment beside the real torchrun's.

PyTorch is Debian's and whatever DDPRUN_TEST_TORCH_PYTHONS names; skipped where there is none. Debian 12's torchrun crashes under Python 3.11 with its own default of
-r and -t; naming a local rank that does not exist gets around it without changing anything.
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import DdprunCase, Network, column, env_to, free_port, shell, skip_all, wait_until
from torch_pythons import torch_pythons

PYTHON = "/usr/bin/python3"  # The one that Debian's torch belongs to.
TORCHRUN = "/usr/bin/torchrun"

GLOO = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert rank == int(os.environ["RANK"]) and world == int(os.environ["WORLD_SIZE"])
numbers = torch.arange(1000, dtype=torch.float32) * (rank + 1)
dist.all_reduce(numbers)
assert torch.equal(numbers, torch.arange(1000, dtype=torch.float32) * (world * (world + 1) / 2))
everybody = [None] * world
dist.all_gather_object(everybody, "rank %d" % rank)
assert everybody == ["rank %d" % r for r in range(world)]
dist.barrier()
print("gloo of", world, "agrees", flush=True)
"""

RESTARTED = GLOO + """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
    os.kill(os.getpid(), 9)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    try:
        dist.barrier()  # Fails as soon as rank 1's connection closes.
    finally:
        import time
        time.sleep(600)  # ddprun ends it.
"""

DDP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(20, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 20)).square().mean().backward()
    optimizer.step()
mine = torch.cat([p.detach().flatten() for p in model.parameters()])
all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
dist.all_gather(all_of_them, mine)
assert all(torch.equal(mine, other) for other in all_of_them)
print("weights equal", flush=True)
"""


class UnderDdprun:
    """The tests of one PyTorch; `python` is set below."""

    def script(self, text):
        with open(self.path("script.py"), "w", encoding="ascii") as f:
            f.write(text + "dist.destroy_process_group()\n")  # 2.15 may abort at its exit without it.
        return self.path("script.py")

    def finish(self, job, code=0, patience=120):
        super().finish(job, code, patience)  # Newer versions take seconds to import, a rank.

    @property
    def env(self):
        return {"PYTHON_EXEC": self.python, "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}

    def test_gloo_on_one_node(self):
        job = self.run_ddprun("--nproc-per-node", "2", self.script(GLOO), env=self.env)
        self.assertEqual(job.out().count("gloo of 2 agrees"), 2, job.text())

    def test_gloo_on_two_nodes_of_this_machine(self):
        job = self.run_ddprun("--local-nodes", "2", "--nproc-per-node", "2", self.script(GLOO), env=self.env)
        self.assertEqual(job.out().count("gloo of 4 agrees"), 4, job.text())

    def test_distributed_data_parallel(self):
        job = self.run_ddprun("--nproc-per-node", "2", self.script(DDP), env=self.env)
        self.assertEqual(job.out().count("weights equal"), 2, job.text())

    def test_gloo_again_after_a_restart(self):
        """A stale key of the first attempt in the store would bring the second one to a dead rank."""
        job = self.run_ddprun("--local-nodes", "2", "--max-restarts", "1", "--shutdown-timeout", "2",
                              self.script(RESTARTED), env=self.env)
        self.assertEqual(job.out().count("gloo of 2 agrees"), 4, job.text())

    @unittest.skipIf(Network.missing(), Network.missing())
    def test_gloo_on_two_machines(self):
        with Network() as net:
            a, b = net.names
            env = {**self.env, "GLOO_SOCKET_IFNAME": "wire"}
            script = self.script(GLOO)
            first = self.start("--nnodes", "2", script, netns=a, env=env)
            line = first.wait_for(r"run:\n\n  (.*\S)\n").group(1)
            second = self.start_program(["/bin/sh", "-c", "exec env " + line], netns=b, env=env)
            for job in (first, second):
                self.finish(job)
                self.assertEqual(job.out().count("gloo of 2 agrees"), 1, job.text())


TORCHES = torch_pythons()
for torch in TORCHES:
    name = "PyTorch_" + torch.version.replace(".", "_")
    globals()[name] = type(name, (UnderDdprun, DdprunCase), {"python": torch.python})


# Where our workers' environment is not torchrun's, and why. Everything else must be equal.
DIFFERENT_VALUES = {
    "MASTER_ADDR": "a name of this machine there, the address of the chosen interface here",
    "MASTER_PORT": "a free port of each run's own",
    "TORCHELASTIC_ERROR_FILE": "each launcher's own folder, the same path within it",
    "TORCHELASTIC_USE_AGENT_STORE": "False until torch 2.5 with c10d; since then True, as here always: "
                                    "the agent hosts the store and no port has to be guessed",
    "DDPRUN_TEST_JOB": "of this test",
    "D": "of this test",
    "_": "of the shell",
    "OLDPWD": "of the shell",
    "SHLVL": "of the shell",
}
ONLY_TORCHRUNS = {
    "NCCL_ASYNC_ERROR_HANDLING": "torch 1.13's name; since 2.2 it is TORCH_NCCL_ASYNC_ERROR_HANDLING, "
                                 "which is set here and which 1.13 does not know",
    "KMP_DUPLICATE_LIB_OK": "set by importing torch in the launcher",
    "KMP_INIT_AT_FORK": "set by importing torch in the launcher",
    "CUDA_MODULE_LOADING": "set by importing torch in the launcher",
    "LC_CTYPE": "set by Python's coercion of the C locale in the launcher",
}
ONLY_OURS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "see NCCL_ASYNC_ERROR_HANDLING",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "of torch 2.7 and later",
    "DDPRUN_TERMINAL_COLUMNS": "ours",
    "DDPRUN_AGENT_SOCKET": "ours",
    "DDPRUN_JOB": "ours",
    "DDPRUN_PROGRESS": "ours",
}


@unittest.skipUnless(os.path.exists(TORCHRUN), "there is no torchrun")
class EnvironmentBesideTorchrun(DdprunCase):
    def test_name_by_name(self):
        """Two workers of one node, and two nodes: names and values, but for the differences listed."""
        for nodes in (1, 2):
            with self.subTest(nodes=nodes):
                theirs = self.of_torchrun(nodes)
                ours = self.of_ddprun(nodes)
                self.compare(theirs, ours)

    def of_torchrun(self, nodes):
        prefix = f"torchrun{nodes}"
        endpoint = f"127.0.0.1:{free_port()}"
        jobs = [self.start_program(
            [PYTHON, TORCHRUN, "--nnodes", str(nodes), "--nproc_per_node", "2", "-r", "9:1", "-t", "9:1",
             "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_id", "same", "--max_restarts",
             "3", "--role", "trainer", "--monitor_interval", "0.1", "--no_python",
             self.dump(prefix)]) for _ in range(nodes)]
        for job in jobs:
            self.assertEqual(job.wait(60), 0, job.text())
        return self.wait_for_workers(2 * nodes, prefix, jobs)

    def of_ddprun(self, nodes):
        prefix = f"ddprun{nodes}"
        argv = ["--local-nodes", str(nodes)] if nodes > 1 else []
        job = self.run_ddprun(*argv, "--nproc-per-node", "2", "--rdzv-id", "same", "--max-restarts", "3",
                              "--role", "trainer", "--log-dir", self.path("logs"), "--no-python",
                              self.dump(prefix))
        return self.wait_for_workers(2 * nodes, prefix, [job])

    def dump(self, prefix):
        """A program of its own: torchrun takes every $ of an argument for a macro."""
        path = self.path(prefix + "-dump")
        with open(path, "w", encoding="ascii") as f:
            f.write("#!/bin/sh\n" + env_to(prefix) + "\n")
        os.chmod(path, 0o755)
        return path

    def compare(self, theirs, ours):
        for their, our in zip(theirs, ours):
            self.assertEqual(sorted(set(their) - set(our) - set(ONLY_TORCHRUNS)), [], "torchrun's only")
            self.assertEqual(sorted(set(our) - set(their) - set(ONLY_OURS)), [], "ddprun's only")
            differ = {name: (their[name], our[name]) for name in set(their) & set(our)
                      if their[name] != our[name] and name not in DIFFERENT_VALUES}
            self.assertEqual(differ, {})
            # The part of the path that torch's own tools look at, where there is a log folder to look into.
            tails = [e["TORCHELASTIC_ERROR_FILE"].split("/")[-3:] for e in (their, our)]
            self.assertEqual(tails[0], tails[1])
        used = {name for their, our in zip(theirs, ours) for name in DIFFERENT_VALUES
                if their.get(name) != our.get(name)}
        self.report("values that differ, each listed with its reason: " + ", ".join(sorted(used)))


if __name__ == "__main__":
    if not TORCHES:
        skip_all("there is no PyTorch: neither Debian's nor one that DDPRUN_TEST_TORCH_PYTHONS names")
    ddprun_case.main()
