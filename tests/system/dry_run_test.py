"""--dry-run tells what then happens: its environment beside that of real workers, name by name; and the config file."""

import os
import re

import ddprun_case
from ddprun_case import DdprunCase, column, env_to, shell

# Only known when the run is under way.
LATER = {"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "NCCL_RAS_ADDR"}
OURS = {"DDPRUN_JOB", "DDPRUN_PROGRESS", "DDPRUN_RELAY", "DDPRUN_TERMINAL_COLUMNS", "DDPRUN_WORKER", "DDPRUN_WORKER_LINK"}


def told(text):
    """{node: [environment of each worker]} of a dry run's text."""
    nodes = {}
    for part in re.split(r"(?m)^environment of the workers of ", text)[1:]:
        name = part.split(",")[0]
        common = dict(line.strip().split("=", 1) for line in part.splitlines()[1:] if not line.startswith("  worker"))
        workers = [dict(word.split("=", 1) for word in line.split()[2:])
                   for line in part.splitlines() if line.startswith("  worker ")]
        nodes[name] = [{**common, **worker} for worker in workers or [{}]]
    return nodes


class DryRun(DdprunCase):
    def dry(self, *argv, **options):
        job = self.run_ddprun("--dry-run", *argv, **options)
        self.assertEqual(self.arrivals(), {}, "nothing runs")
        return job.out()

    def compare(self, *argv, count):
        line = [*argv, "--role", "r", "--max-restarts", "2", *shell(env_to())]
        promised = [worker for node in told(self.dry(*line)).values() for worker in node]
        self.finish(self.start(*line))
        real = self.wait_for_workers(count)
        self.assertEqual(column(promised, "RANK"), column(real, "RANK"))
        inherited = set(ddprun_case.clean_environment()) | {"D", "DDPRUN_CONFIG", ddprun_case.MARKER, "PWD", "_", "SHLVL",
                                                             "OLDPWD", "TMPDIR", "XDG_RUNTIME_DIR"}
        for mine, theirs in zip(promised, real):
            self.assertEqual(set(mine), set(theirs) - inherited - OURS)
            self.assertEqual({n: v for n, v in mine.items() if n not in LATER},
                             {n: v for n, v in theirs.items() if n in mine and n not in LATER})

    def test_one_node(self):
        self.compare("--nproc-per-node", "3", "--signals-to-handle", "SIGTERM,SIGUSR2", count=3)

    def test_one_worker(self):
        self.compare("--standalone", count=1)

    def test_two_nodes_here(self):
        self.compare("--local-nodes", "2", "--nproc-per-node", "2", count=4)

    def test_what_only_the_meeting_can_tell_is_said_so(self):
        text = self.dry("--nnodes", "2", "true")
        self.assertIn("RANK=(given when the nodes have met)", text)
        self.assertNotIn("DDPRUN_TOKEN", text)
        (worker,) = told(self.dry("--nnodes", "2", "--node-rank", "1", "--master-addr", "10.1.2.3", "true",
                                  env={"DDPRUN_TOKEN": "secret"}))["node 1"]
        self.assertEqual((worker["RANK"], worker["WORLD_SIZE"]), ("1", "2"))

    def test_behind_a_router_the_first_node_s_workers_get_its_own_address(self):
        line = ["--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "192.0.2.77:29400", "--rdzv-conf", "is_host=1",
                "--advertise-addr", "192.0.2.77"]
        for more, address in ([], "127.0.0.1"), (["--local-addr", "127.0.0.2"], "127.0.0.2"):
            (worker,) = told(self.dry(*line, *more, "true"))["node 0"]
            self.assertEqual(worker["MASTER_ADDR"], address)

    def test_numbers_read_as_people_say_them(self):
        text = self.dry("true")
        self.assertRegex(text, r"(?m)^nodes:       1, here\n  node 0   \S+ \(here\) +1 worker +rank 0$")
        self.assertIn("workers:     1 a node, local rank 0\n", text)
        text = self.dry("--local-nodes", "2", "--nproc-per-node", "2", "true")
        self.assertRegex(text, r"(?m)^nodes:       2, here\n  node 0 .* 2 workers +ranks 0-1\n  node 1 .* ranks 2-3$")
        self.assertIn("workers:     2 a node, local ranks 0 to 1\n", text)
        text = self.dry("--nnodes", "2:4", "true")
        self.assertRegex(text, r"(?m)^nodes:       2 to 4, 1 of them here\n  one node \S+ \(here\) +1 worker +its ranks \(given")
        self.assertIn("nodes:       2, 1 of them here\n", self.dry("--nnodes", "2", "true"))
        self.assertIn("a, 1 worker\n", self.dry("--hosts", "a,b:2", "true"))

    def test_the_memory_folder_is_shown(self):
        text = self.dry("--memory-folder", "16M,copies=off", "true")
        self.assertIn("\nmemory:      a folder of 16.8 MB a node in /dev/shm\ncommand: ", text)
        self.assertIn("  DDPRUN_MEMORY_SIZE=16777216\n", text)
        text = self.dry("--nnodes", "2", "--memory-folder", f"1M,at={self.dir}", "true")
        self.assertIn(f"\nmemory:      a folder of 1.05 MB a node in {self.dir}, copied to another node\n", text)

    def test_of_slurm(self):
        slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "3", "SLURM_NODEID": "1",
                 "SLURM_STEP_NODELIST": "n[08-10]", "SLURM_STEP_TASKS_PER_NODE": "1(x3)", "DDPRUN_TOKEN": "secret"}
        text = self.dry("--nproc-per-node", "2", "true", env=slurm)
        self.assertIn("started by:  Slurm", text)
        self.assertEqual(re.findall(r"(?m)^  node (\d) +(\S+).*ranks (\S+)$", text),
                         [("0", "n08", "0-1"), ("1", "n09", "2-3"), ("2", "n10", "4-5")])
        self.assertNotIn("secret", text)

    def test_of_hosts(self):
        text = self.dry("--hosts", "a,alice@b:3", "--ssh", "ssh -p 2222", "--nproc-per-node", "2", "train", "-x",
                        env={"NCCL_DEBUG": "INFO", "DDPRUN_TOKEN": "secret"})
        self.assertIn("node 0:      a, 2 workers", text)
        self.assertIn("node 1:      alice@b, 3 workers", text)
        self.assertRegex(text, r"(?m)ssh -p 2222 .*BatchMode=yes.* -- alice@b$")
        self.assertIn("--nproc-per-node 3", text)
        self.assertIn("-- train -x", text)
        self.assertIn("NCCL_DEBUG=INFO", text)
        self.assertNotIn("secret", text)

    def test_of_hosts_that_a_script_lists(self):
        text = self.dry("--host-discovery", "./no-such-script", "--nnodes", "2:3", "--nproc-per-node", "2", "train", "-x")
        self.assertRegex(text, r"rendezvous:  at \S+:29400\n")
        self.assertIn("nodes:       2:3, on hosts that ./no-such-script prints\n", text)
        self.assertRegex(text, r"each runs:   ddprun --nnodes 2:3 --nproc-per-node 2 .*-- train -x\n")


class ConfigFile(DdprunCase):
    def config(self, text):
        with open(self.path("config"), "w", encoding="ascii") as f:
            f.write(text)
        return {"DDPRUN_CONFIG": self.path("config")}

    def test_it_gives_defaults(self):
        env = self.config("# all of mine\nnproc-per-node = 3\n")
        job = self.run_ddprun(*shell("echo of $WORLD_SIZE"), env=env)
        self.assertEqual(job.out().count("of 3"), 3)
        job = self.run_ddprun("--nproc-per-node", "1", *shell("echo of $WORLD_SIZE"), env=env)
        self.assertEqual(job.out().count("of 1"), 1)

    def test_it_is_found_at_home(self):
        os.makedirs(self.path(".config/ddprun"))
        with open(self.path(".config/ddprun/config"), "w", encoding="ascii") as f:
            f.write("nproc-per-node = 2\n")
        job = self.start_program(["env", "-u", "DDPRUN_CONFIG", "-u", "XDG_CONFIG_HOME", "HOME=" + self.dir,
                                  ddprun_case.DDPRUN, *shell("echo of $WORLD_SIZE")])
        self.finish(job)
        self.assertEqual(job.out().count("of 2"), 2)

    def test_what_is_wrong_in_it_is_named_with_its_line(self):
        for text, says in (("nproc = 2", "config:1: unknown flag 'nproc'; did you mean --nproc-per-node?"),
                           ("\nnnodes = x", "config:2: nnodes 'x': give N or MIN:MAX")):
            job = self.run_ddprun("true", env=self.config(text), code=2)
            self.assertIn(says, job.err())
        job = self.run_ddprun("true", env={"DDPRUN_CONFIG": self.path("nothing")}, code=2)
        self.assertIn("cannot be read: No such file", job.err())


if __name__ == "__main__":
    ddprun_case.main()
