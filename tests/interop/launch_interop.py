"""Unmodified PyTorch under ddprun, and the workers' environment beside the real torchrun's.

PyTorch is Debian's and whatever DDPRUN_TEST_TORCH_PYTHONS names; skipped where there is none. Debian 12's torchrun crashes under Python 3.11 with its own default of
-r and -t; naming a local rank that does not exist gets around it without changing anything.
"""

import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import DdprunCase, Network, column, env_to, free_port, shell, skip_all, wait_until
from torch_pythons import torch_pythons

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

# {beginning: flag} of all that argparse takes for torchrun's flags with a value.
ABBREVIATIONS = """
import json
from torch.distributed.run import get_args_parser
parser = get_args_parser()
flags = {s: a for a in parser._actions for s in a.option_strings if s.startswith("--") and a.nargs is None}
found = {}
for flag, action in flags.items():
    for length in range(3, len(flag)):
        if len({s for s in parser._option_string_actions if s.startswith(flag[:length])}) == 1:
            found[flag[:length]] = flag
print(json.dumps(found))
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
del model, optimizer  # Before the group: its destructor needs the interpreter's lock to be free.
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


# Where our workers' environment is not torchrun's, and why; docs/environment.md has the same tables. Everything else
# must be equal.
DIFFERENT_VALUES = {
    "MASTER_ADDR": "the host's own name there unless --local-addr says else, the chosen interface's address here",
    "MASTER_PORT": "a free port of each run's own",
    "TORCHELASTIC_ERROR_FILE": "each launcher's own folder, the same path within it",
    "TORCHELASTIC_USE_AGENT_STORE": "False until torch 2.5 with c10d; since then True, as here always: "
                                    "the agent hosts the store and no port has to be guessed",
}
OF_THE_TEST = {"DDPRUN_TEST_JOB", "D", "_", "OLDPWD", "SHLVL", "PWD", "DDPRUN_TOKEN"}
ONLY_TORCHRUNS = {
    "NCCL_ASYNC_ERROR_HANDLING": "torch 1.13's name; since 2.2 it is TORCH_NCCL_ASYNC_ERROR_HANDLING, "
                                 "which is set here and which 1.13 does not know",
    "KMP_DUPLICATE_LIB_OK": "set by importing torch in the launcher",
    "KMP_INIT_AT_FORK": "set by importing torch in the launcher",
    "CUDA_MODULE_LOADING": "set by importing torch in the launcher",
    "TORCHINDUCTOR_CACHE_DIR": "set by importing torch in the launcher",
    "LC_CTYPE": "set by Python's coercion of the C locale in the launcher",
}
ONLY_OURS = {
    "DDPRUN_TERMINAL_COLUMNS": "ours",
    "DDPRUN_JOB": "ours",
    "DDPRUN_PROGRESS": "ours",
    "DDPRUN_RELAY": "ours",
    "DDPRUN_STDIN": "ours",
    "DDPRUN_WORKER": "ours",
    "DDPRUN_WORKER_LINK": "ours",
    "NCCL_RAS_ADDR": "a place of its own for each job; torchrun's jobs on one node share NCCL's default",
}
ONLY_OURS_BESIDE_OLD = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "see NCCL_ASYNC_ERROR_HANDLING",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "of torch 2.7 and later",
}


class EnvironmentBesideTorchrun:
    """The same program under one real torchrun and under ddprun; `torch` is set below."""

    # Debian 12's torchrun dies under Python 3.11 of its own default of -r and -t.
    @property
    def torchrun(self):
        return [self.torch.python, "-m", "torch.distributed.run"] + \
            (["-r", "9:1", "-t", "9:1"] if self.torch.old else ["--local_addr", "127.0.0.1"])

    def test_one_node(self):
        self.compare_with(self.meeting_at_an_endpoint(1), ["--standalone"], nodes=1)

    def test_two_nodes_that_meet_at_an_endpoint(self):
        self.compare_with(self.meeting_at_an_endpoint(2), ["--local-nodes", "2"], nodes=2)

    def test_two_nodes_of_a_static_list(self):
        """torchrun's oldest command line, here as there."""
        port = str(free_port())
        lines = [["--nnodes", "2", "--node_rank", str(rank), "--master_addr", "127.0.0.1", "--master_port", port]
                 for rank in (0, 1)]
        theirs = self.of_torchrun([line + ["--rdzv_id", "same"] for line in lines])
        port = lines[0][-1] = lines[1][-1] = str(free_port())
        ours = self.of_ddprun([line + ["--rdzv_id", "same"] for line in lines], 4, {"DDPRUN_TOKEN": "t"})
        self.compare(theirs, ours)

    def test_a_virtual_local_rank(self):
        """LOCAL_RANK 0 everywhere, and one GPU of those that we may see."""
        if self.torch.old:
            self.skipTest("--virtual-local-rank is newer than this torch")
        gpus = {"CUDA_VISIBLE_DEVICES": "5,GPU-abc"}
        theirs = self.of_torchrun([["--virtual_local_rank"] + line for line in self.meeting_at_an_endpoint(1)], gpus)
        ours = self.of_ddprun([["--virtual-local-rank", "--rdzv-id", "same"]], 2, gpus)
        self.compare(theirs, ours)
        self.assertEqual(column(ours, "CUDA_VISIBLE_DEVICES"), ["5", "GPU-abc"])

    def test_what_the_user_has_set_is_kept(self):
        own = {"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_ASYNC_ERROR_HANDLING": "0",
               "RANK": "77", "WORLD_SIZE": "78", "MASTER_ADDR": "nowhere", "LOCAL_RANK": "79"}
        theirs = self.of_torchrun(self.meeting_at_an_endpoint(1), own)
        ours = self.of_ddprun([["--standalone", "--rdzv-id", "same"]], 2, own)
        self.compare(theirs, ours)
        self.assertEqual(column(ours, "OMP_NUM_THREADS"), ["3", "3"])

    def test_every_flag_of_its_help_is_known(self):
        """That this list is complete for a torchrun that is newer than our table."""
        env = {**ddprun_case.clean_environment(), "COLUMNS": "200"}
        said = subprocess.run([*self.torchrun[:3], "--help"], capture_output=True, text=True, env=env, timeout=120)
        # The first of each line that defines one; what follows may be words about others, wrapped.
        defined = re.findall(r"(?m)^  (?:-\w(?: \w+)?, )?(--[a-z][\w-]+)", said.stdout)
        theirs = {flag.replace("_", "-") for flag in defined}
        self.assertGreater(len(theirs), 18, said)
        for flag in sorted(theirs):
            job = self.start(flag)
            job.wait()
            self.assertNotIn("unknown option", job.err())
        self.report(f"{len(theirs)} flags")

    def test_each_of_its_abbreviations_is_the_same_flag_or_refused_with_it(self):
        """A flag that only ddprun has may make a beginning ambiguous, but never another flag's."""
        said = subprocess.run([self.torchrun[0], "-c", ABBREVIATIONS], capture_output=True, text=True, timeout=120, check=True,
                              env=ddprun_case.clean_environment())
        theirs = json.loads(said.stdout.splitlines()[-1])
        self.assertGreater(len(theirs), 40)
        same = 0
        for typed, flag in sorted(theirs.items()):
            job = self.start(typed)
            self.assertEqual(job.wait(), 2, job.text())
            dashed = flag.replace("_", "-")
            with self.subTest(typed=typed):
                self.assertRegex(job.err(), rf"{dashed} needs a value|{typed} is ambiguous: .*{dashed}\b")
            same += "needs a value" in job.err()
        self.assertGreater(same, len(theirs) / 2)
        self.report(f"{len(theirs)} beginnings of torchrun's flags, {same} stand for the same flag")

    @staticmethod
    def meeting_at_an_endpoint(nodes):
        return [["--nnodes", str(nodes), "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}",
                 "--rdzv_id", "same"] for port in [free_port()] for _ in range(nodes)]

    def compare_with(self, their_lines, our_line, nodes):
        theirs = self.of_torchrun(their_lines)
        self.compare(theirs, self.of_ddprun([our_line + ["--rdzv-id", "same"]], 2 * nodes))

    COMMON = ["--nproc_per_node", "2", "--max_restarts", "3", "--role", "trainer", "--monitor_interval", "0.1"]

    def of_torchrun(self, lines, env=None):
        jobs = [self.start_program([*self.torchrun, *line, *self.COMMON, "--no_python", self.dump("theirs")],
                                   env={"PYTHONWARNINGS": "ignore", **(env or {})}) for line in lines]
        for job in jobs:
            self.assertEqual(job.wait(120), 0, job.text())
        return self.wait_for_workers(2 * len(lines), "theirs", jobs)

    def of_ddprun(self, lines, workers, env=None):
        jobs = [self.start(*line, *self.COMMON, "--log-dir", self.path("logs"), "--no-python", self.dump("ours"),
                           env={"PYTHONWARNINGS": "ignore", **(env or {})}) for line in lines]
        for job in jobs:
            self.finish(job)
        return self.wait_for_workers(workers, "ours", jobs)

    def dump(self, prefix):
        """A program of its own: torchrun takes every $ of an argument for a macro."""
        path = self.path(prefix + "-dump")
        with open(path, "w", encoding="ascii") as f:
            f.write("#!/bin/sh\n" + env_to(prefix) + "\n")
        os.chmod(path, 0o755)
        return path

    def compare(self, theirs, ours):
        only_ours = {**ONLY_OURS, **(ONLY_OURS_BESIDE_OLD if self.torch.old else {})}
        names = [set(their) | set(our) for their, our in zip(theirs, ours)]
        self.assertEqual(len(theirs), len(ours))
        for their, our in zip(theirs, ours):
            self.assertEqual(sorted(set(their) - set(our) - set(ONLY_TORCHRUNS) - OF_THE_TEST), [], "torchrun's only")
            self.assertEqual(sorted(set(our) - set(their) - set(only_ours) - OF_THE_TEST), [], "ddprun's only")
            differ = {name: (their[name], our[name]) for name in set(their) & set(our) - OF_THE_TEST
                      if their[name] != our[name] and name not in DIFFERENT_VALUES}
            self.assertEqual(differ, {})
            # The part of the path that torch's own tools look at, where there is a log folder to look into.
            tails = [e["TORCHELASTIC_ERROR_FILE"].split("/")[-3:] for e in (their, our)]
            self.assertEqual(tails[0], tails[1])
        used = {name for their, our in zip(theirs, ours) for name in DIFFERENT_VALUES
                if their.get(name) != our.get(name)}
        self.report(f"{max(map(len, names))} names; values that differ, each listed with its reason: "
                    + ", ".join(sorted(used)))


for torch in TORCHES:
    name = "EnvironmentBesideTorchrun_" + torch.version.replace(".", "_")
    globals()[name] = type(name, (EnvironmentBesideTorchrun, DdprunCase), {"torch": torch})


class TheDocumentedTables(unittest.TestCase):
    def test_name_every_difference(self):
        page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "environment.md")
        with open(page, encoding="utf-8") as f:
            text = f.read().split("### The workers' environment beside torchrun's")[1].split("\n#")[0]
        listed = [*DIFFERENT_VALUES, *ONLY_TORCHRUNS, *ONLY_OURS, *ONLY_OURS_BESIDE_OLD]
        self.assertEqual(sorted(set(listed)), sorted(set(re.findall(r"`([A-Z_]{4,})`", text))))


if __name__ == "__main__":
    if not TORCHES:
        skip_all("there is no PyTorch: neither Debian's nor one that DDPRUN_TEST_TORCH_PYTHONS names")
    ddprun_case.main()
