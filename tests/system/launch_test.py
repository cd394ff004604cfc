"""ddprun starts workers: their ranks, their environment, their command and what they print."""

import os
import re
import shutil
import socket
import sys
import unittest

import ddprun_case
from ddprun_case import BIN, DDPRUN, DdprunCase, PASS_GATE, STORE_CLIENT, column, env_to, free_port, shell


class WaysToRunAProgram(DdprunCase):
    SCRIPT = "import sys, os\nif __name__ == '__main__': print(os.environ['RANK'], sys.argv[1:], sys.argv[0])\n"

    def script(self, name):
        with open(self.path(name), "w", encoding="ascii") as f:
            f.write(self.SCRIPT)
        return self.path(name)

    def said(self, *argv):
        job = self.run_ddprun("--nproc-per-node", "2", *argv)
        return sorted(re.findall(r"\]: *(.*)", job.out()))

    def test_run_path(self):
        script = self.script("script_without_suffix")
        self.assertEqual(self.said("--run-path", script, "a b", "-c"),
                         [f"{rank} ['a b', '-c'] {script}" for rank in "01"])

    def test_local_rank_as_torch_distributed_launch_passed_it(self):
        script = self.script("script.py")
        self.assertEqual(self.said("--use-env=0", script, "x"),
                         [f"{rank} ['--local-rank={rank}', 'x'] {script}" for rank in "01"])
        self.assertEqual(self.said("--use_env", script, "x"), [f"{rank} ['x'] {script}" for rank in "01"])


class RanksOfOneMachine(DdprunCase):
    def test_one_node_gives_every_worker_its_place(self):
        job = self.run_ddprun("--standalone", "--nproc-per-node", "3", *shell(env_to()))
        workers = self.wait_for_workers(3, jobs=[job])
        self.assertEqual(column(workers, "RANK"), ["0", "1", "2"])
        self.assertEqual(column(workers, "LOCAL_RANK"), ["0", "1", "2"])
        same = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
                "ROLE_NAME": "default", "ROLE_WORLD_SIZE": "3", "TORCHELASTIC_RESTART_COUNT": "0",
                "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "True",
                "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        for name, value in same.items():
            self.assertEqual(set(column(workers, name)), {value}, name)
        self.assertEqual(len(set(column(workers, "MASTER_PORT"))), 1)
        self.assertEqual(len(set(column(workers, "TORCHELASTIC_ERROR_FILE"))), 3)

    def test_local_nodes_are_nodes(self):
        for nodes in (2, 3):
            with self.subTest(nodes=nodes):
                prefix = f"env{nodes}"
                job = self.run_ddprun("--local-nodes", nodes, "--nproc-per-node", "2",
                                      *shell(env_to(prefix)))
                workers = self.wait_for_workers(2 * nodes, prefix, [job])
                ranks = range(2 * nodes)
                self.assertEqual(column(workers, "RANK"), [str(r) for r in ranks])
                self.assertEqual(column(workers, "GROUP_RANK"), [str(r // 2) for r in ranks])
                self.assertEqual(column(workers, "LOCAL_RANK"), [str(r % 2) for r in ranks])
                self.assertEqual(set(column(workers, "WORLD_SIZE")), {str(2 * nodes)})
                self.assertEqual(set(column(workers, "GROUP_WORLD_SIZE")), {str(nodes)})
                self.assertEqual(len(set(column(workers, "MASTER_PORT"))), 1)

    def test_workers_meet_in_the_store_at_master_addr(self):
        job = self.run_ddprun("--local-nodes", "2", "--nproc-per-node", "2", "--no-python",
                              sys.executable, "-c", STORE_CLIENT)
        self.assertEqual(job.out().count("met 4 ranks"), 4, job.text())


class TwoCommands(DdprunCase):
    def test_the_printed_line_brings_the_other_node(self):
        first = self.start("--nnodes", "2", "--nproc-per-node", "2", "--local-addr", "127.0.0.1",
                           *shell(env_to()))
        line = first.wait_for(r"run:\n\n  (.*\S)\n").group(1)
        self.assertNotIn("DDPRUN_TOKEN", " ".join(first.argv))
        token = re.match(r"DDPRUN_TOKEN=(\S+) ", line).group(1)
        # The rest of the line is what `ps` will show on that machine.
        self.assertNotIn(token, line[len("DDPRUN_TOKEN=") + len(token):])
        second = self.start_program(["/bin/sh", "-c", "exec env " + line])
        self.finish(first)
        self.finish(second)
        workers = self.wait_for_workers(4, jobs=[first, second])
        self.assertEqual(column(workers, "GROUP_RANK"), ["0", "0", "1", "1"])
        # The node that hosts the endpoint is group rank 0, and the store is there.
        self.assertEqual({w["DDPRUN_TEST_JOB"] for w in workers[:2]}, {first.marker})
        self.assertEqual(set(column(workers, "MASTER_ADDR")), {"127.0.0.1"})

    def test_the_token_is_in_no_argv_and_in_no_worker(self):
        gate = self.gate()
        token = "s3cret-of-the-tests"
        endpoint = f"127.0.0.1:{free_port()}"
        job = self.start("--local-nodes", "2", "--rdzv-endpoint", endpoint,
                         *shell(env_to() + PASS_GATE), env={"DDPRUN_TOKEN": token})
        workers = self.wait_for_workers(2, jobs=[job])
        for worker in workers:
            self.assertNotIn(token, repr(worker))
        for process in job.processes():
            self.assertNotIn(token, " ".join(process.argv))
        gate.open()
        self.finish(job)

    def test_nodes_of_different_size(self):
        first, second = self.two_nodes(worker=shell(env_to()), options=(
            ["--nproc-per-node", "1"], ["--nproc-per-node", "3"]))
        self.finish(first)
        self.finish(second)
        workers = self.wait_for_workers(4)
        self.assertEqual(column(workers, "LOCAL_RANK"), ["0", "0", "1", "2"])
        self.assertEqual(column(workers, "LOCAL_WORLD_SIZE"), ["1", "3", "3", "3"])
        self.assertEqual(column(workers, "GROUP_RANK"), ["0", "1", "1", "1"])
        self.assertEqual(set(column(workers, "WORLD_SIZE")), {"4"})

    def test_node_rank_decides_over_who_hosts(self):
        first, second = self.two_nodes(worker=shell(env_to()), options=(
            ["--node-rank", "1"], ["--node-rank", "0"]))
        self.finish(first)
        self.finish(second)
        workers = self.wait_for_workers(2)
        self.assertEqual(column(workers, "DDPRUN_TEST_JOB"), [second.marker, first.marker])

    def test_torchruns_static_command_line(self):
        port = free_port()
        env = {"DDPRUN_TOKEN": "t"}
        common = ["--nnodes", "2", "--master_addr", "127.0.0.1", "--master_port", port]
        second = self.start(*common, "--node_rank", "1", *shell(env_to()), env=env)
        first = self.start(*common, "--node_rank", "0", *shell(env_to()), env=env)
        self.finish(first)
        self.finish(second)
        workers = self.wait_for_workers(2)
        self.assertEqual(column(workers, "DDPRUN_TEST_JOB"), [first.marker, second.marker])
        self.assertEqual(set(column(workers, "MASTER_PORT")), {str(port)})
        self.assertEqual(set(column(workers, "MASTER_ADDR")), {"127.0.0.1"})
        self.assertEqual(len(set(column(workers, "NCCL_RAS_ADDR"))), 1)

    def test_role_ranks_count_within_a_role(self):
        first, second = self.two_nodes("--nproc-per-node", "2", worker=shell(env_to()), options=(
            ["--role", "trainer"], ["--role", "reader"]))
        self.finish(first)
        self.finish(second)
        workers = self.wait_for_workers(4)
        self.assertEqual(column(workers, "ROLE_NAME"), ["trainer", "trainer", "reader", "reader"])
        self.assertEqual(column(workers, "ROLE_RANK"), ["0", "1", "0", "1"])
        self.assertEqual(set(column(workers, "ROLE_WORLD_SIZE")), {"2"})

    def test_two_runs_share_nothing(self):
        """torchrun's --standalone jobs on one host join each other's store; ours must not."""
        gate = self.gate()
        jobs = [self.start("--standalone", "--nproc-per-node", "2", *shell(env_to() + PASS_GATE))
                for _ in range(2)]
        workers = self.wait_for_workers(4, jobs=jobs)
        self.assertEqual(set(column(workers, "WORLD_SIZE")), {"2"})
        self.assertEqual(len(set(column(workers, "MASTER_PORT"))), 2)
        gate.open()
        for job in jobs:
            self.finish(job)


class Commands(DdprunCase):
    def script(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return name

    def test_a_python_script_runs_unbuffered(self):
        self.script("train.py", "import os, sys\n"
                    "sys.stdout.write('args %r\\n' % sys.argv[1:])\n"
                    "os._exit(0)\n")  # Without -u what was written is lost here.
        job = self.run_ddprun("--nproc-per-node", "2", "train.py", "--epochs", "3", "-m", "--nnodes")
        self.assertEqual(job.out().count("args ['--epochs', '3', '-m', '--nnodes']"), 2, job.text())

    def test_a_module(self):
        self.script("mymodule.py", "import sys; print('module', __name__, sys.argv[1:])\n")
        job = self.run_ddprun("-m", "mymodule", "x")
        self.assertIn("module __main__ ['x']", job.out())

    def test_no_python_executes_a_py_file(self):
        self.script("tool.py", "#!/bin/sh\necho shell $1\n")
        os.chmod(self.path("tool.py"), 0o755)
        job = self.run_ddprun("--no-python", "./tool.py", "one")
        self.assertIn("shell one", job.out())

    def test_local_rank_in_arguments(self):
        job = self.run_ddprun("--nproc-per-node", "2", "/bin/echo", "r=${local_rank}!")
        self.assertEqual(sorted(job.out().splitlines()), ["[default0]:r=0!", "[default1]:r=1!"])

    def test_pet_variables_are_defaults_and_flags_win(self):
        job = self.run_ddprun(*shell("echo $WORLD_SIZE $ROLE_NAME"),
                              env={"PET_NPROC_PER_NODE": "2", "PET_ROLE": "petted"})
        self.assertEqual(job.out().count("2 petted"), 2, job.text())
        job = self.run_ddprun("--nproc_per_node=1", *shell("echo $WORLD_SIZE $ROLE_NAME"),
                              env={"PET_NPROC_PER_NODE": "2"})
        self.assertIn("1 default", job.out())

    def test_omp_num_threads_of_the_user_is_kept(self):
        job = self.run_ddprun("--nproc-per-node", "2", *shell("echo omp=$OMP_NUM_THREADS"),
                              env={"OMP_NUM_THREADS": "5"})
        self.assertEqual(job.out().count("omp=5"), 2)

    def test_standard_input_is_not_shared(self):
        self.run_ddprun("--nproc-per-node", "2", "/bin/cat")

    def test_workers_inherit_no_descriptor_but_the_end_of_their_own_link(self):
        job = self.run_ddprun("--local-nodes", "2", "--nproc-per-node", "2",
                              *shell('cd /proc/self/fd; for f in *; do [ $f -gt 2 ] && [ -e $f ] && '
                                     'echo "leaked $f $(readlink $f)"; done; true'))
        leaked = [line for line in job.out().splitlines() if "leaked" in line]
        # The shell itself may hold /proc/self/fd open while it expands the star.
        leaked = [line for line in leaked if "/fd" not in line.split()[-1]]
        self.assertEqual([re.sub(r"^\[default\d\]:|\d+\]$", "", line) for line in leaked], ["leaked 3 socket:["] * 4)
        self.assertEqual(len({line.split()[-1] for line in leaked}), 4)


class Output(DdprunCase):
    def files(self, folder):
        found = {}
        for base, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(base, name)
                with open(path, encoding="utf-8") as f:
                    found["/".join(path.split("/")[-3:])] = f.read()
        return found

    TALK = 'echo out$RANK; echo err$RANK >&2'

    def test_redirected_output_without_a_log_folder_is_kept_and_its_place_said(self):
        job = self.run_ddprun("-r", "3", *shell("echo out"), env={"TMPDIR": self.dir})
        folder = re.search(r"workers' output goes to (\S+)", job.err()).group(1)
        with open(os.path.join(folder, "attempt_0/0/stdout.log")) as f:
            self.assertEqual(f.read(), "out\n")

    def test_no_file_is_left_where_none_was_asked_for(self):
        os.mkdir(self.path("tmp"))
        self.run_ddprun("--nproc-per-node", "2", "true", env={"TMPDIR": self.path("tmp")})
        self.assertEqual(os.listdir(self.path("tmp")), [])

    def test_redirect_writes_files_only(self):
        job = self.run_ddprun("--nproc-per-node", "2", "--log-dir", self.path("logs"), "-r", "3",
                              *shell(self.TALK))
        self.assertEqual(job.out() + job.err(), "", job.text())
        files = self.files(self.path("logs"))
        for rank in (0, 1):
            self.assertEqual(files[f"attempt_0/{rank}/stdout.log"], f"out{rank}\n")
            self.assertEqual(files[f"attempt_0/{rank}/stderr.log"], f"err{rank}\n")

    def test_tee_writes_both(self):
        job = self.run_ddprun("--nproc-per-node", "2", "--log-dir", self.path("logs"), "-t", "1:1",
                              *shell(self.TALK))
        self.assertEqual(sorted(job.out().splitlines()), ["[default0]:out0", "[default1]:out1"])
        files = {k: v for k, v in self.files(self.path("logs")).items() if k.endswith(".log")}
        self.assertEqual(files, {"attempt_0/1/stdout.log": "out1\n"})

    def test_a_prefix_is_role_and_global_rank_and_torchruns_by_the_template(self):
        """As docs/environment.md's table of differences has it, with the file that stands beside it there."""
        line = ["--local-nodes", "2", "--nproc-per-node", "2", *shell("echo at $MASTER_ADDR $TORCHELASTIC_ERROR_FILE")]
        said = self.run_ddprun(*line).out()
        self.assertEqual(sorted(re.findall(r"(?m)^(\[.*?\]:)at 127\.0\.0\.1 \S*/(error_\S*)\.json$", said)),
                         [("[default0]:", "error_0_0"), ("[default1]:", "error_0_1"), ("[default2]:", "error_1_0_0"),
                          ("[default3]:", "error_1_0_1")])
        said = self.run_ddprun("--log-line-prefix-template", "[${role_name}${local_rank}]:", *line).out()
        self.assertEqual(sorted(re.findall(r"(?m)^(\[.*?\]:)at", said)), 2 * ["[default0]:"] + 2 * ["[default1]:"])

    def test_filter_and_template(self):
        job = self.run_ddprun("--nproc-per-node", "3", "--local-ranks-filter", "0,2",
                              "--log-line-prefix-template", "<${role_name} ${rank}> ",
                              *shell("echo hello"))
        self.assertEqual(sorted(job.out().splitlines()), ["<default 0> hello", "<default 2> hello"])

    def test_an_empty_template_prints_lines_as_they_are(self):
        job = self.run_ddprun("--nproc-per-node", "2", "--log-line-prefix-template=", *shell('echo "{\\"rank\\": $RANK}"'))
        self.assertEqual(sorted(job.out().splitlines()), ['{"rank": 0}', '{"rank": 1}'])

    def test_a_folder_for_bundles_that_cannot_be_written_is_refused_at_once(self):
        open(self.path("file"), "w", encoding="ascii").close()
        job = self.run_ddprun("--bundle-folder", self.path("file"), *shell("echo ran"), code=1)
        self.assertIn(f"--bundle-folder {self.path('file')} cannot be written: ", job.err())
        self.assertNotIn("ran", job.out())
        self.run_ddprun("--bundle-folder", self.path("new/folder"), *shell("true"))
        self.assertTrue(os.path.isdir(self.path("new/folder")))

    def test_one_node_under_a_name_warns_of_nothing(self):
        job = self.run_ddprun("--nnodes", "1", "--node-rank", "0", "--master-addr", "localhost", *shell("true"))
        self.assertEqual(job.err(), "")

    def test_an_interface_that_is_not_there_is_named_with_its_variable(self):
        worker = os.path.join(BIN, "collectives_worker")
        job = self.start("--nproc-per-node", "2", worker, env={"DDPRUN_SOCKET_IFNAME": "ib7", "DDPRUN_BACKEND": "gloo"})
        self.assertNotEqual(job.wait(ddprun_case.PATIENCE), 0)
        self.assertIn("DDPRUN_SOCKET_IFNAME=ib7: this machine has no such interface; it has ", job.err())
        self.assertRegex(job.err(), "this host has no interface 'ib7', which DDPRUN_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names; it has .*lo")

    def test_a_filter_that_names_no_worker_says_why_nothing_is_printed(self):
        for line in [[], ["--local-nodes", "2"]]:
            job = self.run_ddprun(*line, "--nproc-per-node", "2", "--local-ranks-filter", "2,3", *shell("echo hello"))
            self.assertEqual(job.out(), "")
            warning = "--local-ranks-filter names local ranks 2-3, but this node's last local rank is 1: no worker's lines"
            self.assertEqual(job.err().count(warning), 1, job.err())

    def test_lines_of_many_workers_stay_whole(self):
        lines, workers = 2000, 4
        job = self.run_ddprun("--local-nodes", "2", "--nproc-per-node", workers // 2, *shell(
            f"yes $RANK-{'x' * 190} | head -n {lines}"))
        whole = re.compile(r"\[default(\d)\]:(\d)-x{190}")
        counts = {}
        for line in job.out().splitlines():
            match = whole.fullmatch(line)
            self.assertTrue(match and match.group(1) == match.group(2), line)
            counts[match.group(2)] = counts.get(match.group(2), 0) + 1
        self.assertEqual(counts, {str(r): lines for r in range(workers)})

    def test_last_line_without_newline_arrives(self):
        job = self.run_ddprun("/usr/bin/printf", "no newline")
        self.assertIn("no newline", job.out())

    def test_nothing_stays_in_the_temporary_folder(self):
        os.mkdir(self.path("tmp"))
        self.run_ddprun("--local-nodes", "2", "/bin/true",
                        env={"TMPDIR": self.path("tmp"), "XDG_RUNTIME_DIR": ""})
        self.assertEqual(os.listdir(self.path("tmp")), [])


class UnderSlurmsVariables(DdprunCase):
    """What srun would set, without Slurm."""

    def node(self, number, rank, *worker, **options):
        return self.start("--nproc-per-node", "1", *worker, **options, env={
            "DDPRUN_TOKEN": "a token of the tests", "SLURM_JOB_ID": str(number), "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "localhost,elsewhere", "SLURM_NODEID": str(rank),
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)"})

    @staticmethod
    def port(number):
        return 29400 + 16 * number % 3200

    def a_job(self):
        """One whose ports are free."""
        for number in range(os.getpid(), os.getpid() + 200):
            try:
                sockets = [socket.create_server(("127.0.0.1", 29400 + (16 * number + i * 577) % 3200)) for i in range(4)]
            except OSError:
                continue
            for s in sockets:
                s.close()
            return number
        self.skipTest("no free port in Slurm's range")

    def test_a_derived_port_that_is_taken_has_others_after_it(self):
        number = self.a_job()
        with socket.create_server(("127.0.0.1", self.port(number))):
            nodes = [self.node(number, rank, *shell("echo $WORLD_SIZE")) for rank in (1, 0)]
            for job in nodes:
                self.finish(job)
                self.assertIn("[default", job.out())
        self.assertRegex(nodes[1].err(), rf"port {self.port(number)} .*; using port \d+ instead")

    def test_two_jobs_that_derive_one_port_do_not_meet(self):
        """Their numbers differ by 200, and their token is the same."""
        number = self.a_job()
        gate = self.gate()
        first = [self.node(number, rank, *shell(env_to("first") + PASS_GATE)) for rank in (0, 1)]
        self.wait_for_workers(2, "first", first)
        for job in [self.node(number + 200, rank, *shell("echo $TORCHELASTIC_RUN_ID")) for rank in (1, 0)]:
            self.finish_alone(job)
            self.assertIn(f"slurm-{number + 200}.0", job.out())
        gate.open()
        for job in first:
            self.finish_alone(job)

    def finish_alone(self, job):
        self.assertEqual(job.wait(), 0, job.text())
        self.assert_nothing_left(job)

    def test_the_program_of_the_daemon_is_missing(self):
        copy = self.path("ddprun")
        shutil.copy(DDPRUN, copy)
        for argv in (["--local-nodes", "2"], ["--nnodes", "2", "--local-addr", "127.0.0.1"]):
            job = self.start_program([copy, *argv, "true"])
            self.assertNotEqual(job.wait(), 0, job.text())
            self.assertIn("ddprun-rendezvous cannot be run", job.err())
            self.assert_nothing_left(job)



if __name__ == "__main__":
    ddprun_case.main()
