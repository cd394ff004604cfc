"""What a user can get wrong: each ends soon, with the exit code of its kind and a text that says what to do."""

import os
import re
import socket
import subprocess
import threading
import time

import ddprun_case
from ddprun_case import DDPRUN, DdprunCase, clean_environment, free_port, shell

USAGE, RENDEZVOUS = 2, 3


class OfTheCommandLine(DdprunCase):
    def refused(self, *argv, says, code=USAGE, env=None):
        job = self.run_ddprun(*argv, code=code, env=env)
        self.assertRegex(job.err(), says)
        self.assertEqual(job.out(), "")
        self.assertLessEqual(len(job.err().splitlines()), 4, job.err())
        return job

    def test_unknown_flags_name_the_nearest(self):
        self.refused("--nporc-per-node", "2", "true", says=r"--nporc-per-node.*--nproc-per-node")
        self.refused("--max_restarst", "2", "true", says=r"--max_restarst.*--max[-_]restarts")
        self.refused("--rdzv-conf", "join_timout=3", "true", says="join_timout.*join_timeout")

    def test_a_beginning_of_several_flags_names_them(self):
        self.refused("--master", "h", "true", says="--master is ambiguous: --master-addr or --master-port")

    def test_values_that_cannot_be(self):
        for flag, value in (("--nnodes", "3:1"), ("--nnodes", "0"), ("--nnodes", "two"), ("--nnodes", "1:2:3"),
                            ("--nproc-per-node", "0"), ("--nproc-per-node", "-1"), ("--nproc-per-node", "foo"),
                            ("--max-restarts", "-1"), ("--local-nodes", "0"), ("--rdzv-conf", "join_timeout"),
                            ("--rdzv-endpoint", "127.0.0.1:99999"), ("-r", "7"), ("--shutdown-timeout", "-1"),
                            ("--master-port", "0x50"), ("--signals-to-handle", "SIGNOTHING"),
                            ("--nproc-per-node", "xpu"), ("--node-rank", "3")):
            with self.subTest(flag=flag, value=value):
                self.refused(f"{flag}={value}" if flag.startswith("--") else flag + value, "true",
                             says=re.escape(flag if flag != "-r" else "-r"))

    def test_an_address_with_a_port_is_none(self):
        for flag in ("--local-addr", "--advertise-addr"):
            for address in ("10.0.0.1:29400", "[::1]", "[::1]:29400"):
                self.refused("--nnodes", "2", flag, address, "true",
                             says=re.escape(f"{flag} '{address}': give a host's name or its address alone, without a port and without brackets"))

    def test_an_unset_variable_of_hosts_does_not_run_it_here(self):
        for line in (["--hosts", ""], ["--hosts="]):
            self.refused(*line, "touch", self.path("ran"), says="--hosts is empty")
        self.assertFalse(os.path.exists(self.path("ran")))

    def test_values_of_variables_name_the_variable(self):
        self.refused("true", says="PET_NNODES", env={"PET_NNODES": "many"})

    def test_no_program(self):
        self.refused("--nproc-per-node", "2", says="(?i)program")

    def test_a_program_that_is_not_there(self):
        self.refused("./no-such-program", says="no-such-program")
        self.refused("no-such-program-in-path", says="no-such-program-in-path.*PATH")
        self.refused("no-such-script.py", says="no-such-script.py")

    def test_the_nearest_file_is_named(self):
        with open(self.path("train_model.py"), "w", encoding="ascii"):
            pass
        self.refused("train_modle.py", says="train_model.py")

    def test_a_program_that_is_not_executable(self):
        with open(self.path("worker"), "w", encoding="ascii") as f:
            f.write("#!/bin/sh\n")
        self.refused("./worker", says="worker.*not executable")

    def test_a_folder_is_no_program(self):
        os.mkdir(self.path("folder"))
        self.refused("./folder", says="cannot run .*/folder: it is a folder")

    def test_a_program_without_interpreter_fails_its_rank(self):
        """Only exec can tell: the file is executable, what its first line names is missing."""
        with open(self.path("worker"), "w", encoding="ascii") as f:
            f.write("#!/no/such/interpreter\n")
        os.chmod(self.path("worker"), 0o755)
        job = self.run_ddprun("--nproc-per-node", "2", "--max-restarts", "0", "./worker", code=127)
        self.assertRegex(job.err(), "./worker|/worker")

    def test_all_programs_tell_one_version_and_begin_errors_with_their_name(self):
        versions = set()
        for name in ("ddprun", "ddprunctl", "ddprun-rendezvous"):
            program = os.path.join(ddprun_case.BIN, name)
            with self.subTest(program=name):
                said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60)
                own_name, version = said.stdout.split()
                self.assertEqual(own_name, name)
                versions.add(version)
                wrong = subprocess.run([program, "--no-such-flag"], capture_output=True, text=True, check=False,
                                       timeout=60)
                self.assertEqual((wrong.returncode, wrong.stdout), (USAGE, ""))
                self.assertRegex(wrong.stderr, rf"\A{name}: error: .*--no-such-flag.*\n\Z")
        self.assertEqual(len(versions), 1, versions)

    def test_a_log_folder_that_cannot_be_made(self):
        with open(self.path("file"), "w", encoding="ascii"):
            pass
        job = self.run_ddprun("--log-dir", self.path("file"), "true", code=1)
        file = re.escape(self.path("file"))
        self.assertRegex(job.err(), rf"(?m)^ddprun: error: --log-dir {file}: making the log folder {file}: \w")

    def test_a_token_file_that_is_not_there(self):
        self.refused("--nnodes", "2", "--local-addr", "127.0.0.1", "--token-file", self.path("none"), "true",
                     says="token.*" + re.escape(self.path("none")))


class OfTheEndpoint(DdprunCase):
    def joining(self, endpoint, *argv, env=None, code=RENDEZVOUS, nnodes="2"):
        started = time.monotonic()
        job = self.run_ddprun("--nnodes", nnodes, "--rdzv-endpoint", endpoint, *argv, "true", code=code,
                              env={"DDPRUN_TOKEN": "t"} if env is None else env)
        return job, time.monotonic() - started

    def test_a_port_in_use_names_its_holder(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            job, _ = self.joining(f"127.0.0.1:{port}", "--rdzv-conf", "is_host=1", code=1)
        self.assertRegex(job.err(), rf"{port}.*in use")
        self.assertRegex(job.err(), rf"\b{os.getpid()}\b|python")

    def test_a_token_is_needed(self):
        job, _ = self.joining("127.0.0.1:9", "--rdzv-conf", "is_host=0", env={}, code=USAGE)
        self.assertRegex(job.err(), "DDPRUN_TOKEN.*--token-file")

    def test_a_wrong_token_is_said_on_both_sides(self):
        port = free_port()
        host = self.start("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf",
                          "is_host=1", "true", env={"DDPRUN_TOKEN": "right"})
        job, took = self.joining(f"127.0.0.1:{port}", "--rdzv-conf", "is_host=0",
                                 env={"DDPRUN_TOKEN": "wrong"})
        self.report(f"{took:.2f} s until the wrong token was said")
        self.assertRegex(job.err(), "(?i)token")
        host.wait_for("(?i)refused a connection from 127.0.0.1.*token")
        self.assertFalse(host.ended())  # A stranger does not end the run.
        host.signal(15)
        self.finish(host, 143)

    def test_tls_against_none(self):
        port = free_port()
        host = self.start("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf",
                          "is_host=1", "true", env={"DDPRUN_TOKEN": "right"})
        job, _ = self.joining(f"127.0.0.1:{port}", "--rdzv-conf", "is_host=0,auth=none,join_timeout=2", env={})
        self.assertRegex(job.err(), "(?i)token")
        self.assertLess(len(job.err().splitlines()), 10)
        host.signal(15)
        self.finish(host, 143)

    def differing(self, host_argv, joining_argv, says):
        port = free_port()
        env = {"DDPRUN_TOKEN": "t"}
        common = ["--rdzv-endpoint", f"127.0.0.1:{port}"]
        host = self.start(*common, *host_argv, "true", env=env)
        host.wait_for("waiting for nodes")
        job = self.run_ddprun(*common, *joining_argv, "true", env=env, code=RENDEZVOUS)
        self.assertRegex(job.err(), says)
        self.assertIn(os.uname().nodename, job.err())
        host.wait_for("; .* was refused: " + says)  # Who waits is told why nobody came.
        host.signal(15)
        self.finish(host, 143)

    def test_run_ids_that_differ(self):
        port = free_port()
        common = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        jobs = [self.start(*common, "--rdzv-id", name, "--rdzv-conf", f"is_host={host}", "true",
                           env={"DDPRUN_TOKEN": "t"}) for name, host in (("job1", 1), ("job2", 0))]
        for job, other in zip(jobs, ("job2", "job1")):
            job.wait_for(f"; run {other} waits at the same daemon for 1 of 2 nodes: is --rdzv-id equal")
        for job in reversed(jobs):
            job.signal(15)
            job.wait()

    def test_nnodes_that_differ(self):
        self.differing(["--nnodes", "2"], ["--nnodes", "3"], "--nnodes is 3.* on .* but 2.* on ")

    def test_max_restarts_that_differ(self):
        self.differing(["--nnodes", "2", "--max-restarts", "1"], ["--nnodes", "2", "--max-restarts", "4"],
                       "--max-restarts is 4 on .* but 1 on ")

    def test_a_node_rank_that_is_taken(self):
        self.differing(["--nnodes", "2", "--node-rank", "0", "--rdzv-conf", "is_host=1"],
                       ["--nnodes", "2", "--node-rank", "0", "--rdzv-conf", "is_host=0"],
                       "--node-rank 0 is already taken by ")

    def test_a_name_that_nobody_knows(self):
        """It may be known in a moment, as that of a pod."""
        job, took = self.joining("no-such-host.invalid:29400", "--rdzv-conf", "join_timeout=2")
        self.report(f"{took:.2f} s with join_timeout=2")
        unknown = r"\(cannot resolve host 'no-such-host.invalid' \([^)]+\)\)"
        self.assertRegex(job.err(), "connecting to no-such-host.invalid:29400 " + unknown + "; \\d+ s left")
        self.assertRegex(job.err(), f"error: no rendezvous daemon {unknown}; giving up")
        self.assertGreaterEqual(took, 1.9)

    def test_nobody_listens(self):
        port = free_port()
        job, took = self.joining(f"127.0.0.1:{port}", "--rdzv-conf", "is_host=0,join_timeout=2")
        self.report(f"{took:.2f} s with join_timeout=2")
        self.assertRegex(job.err(), rf"127.0.0.1:{port}.*(?i:refused)")
        self.assertGreaterEqual(took, 1.9)

    def test_a_foreign_program_that_never_answers(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            job, took = self.joining("127.0.0.1:%d" % s.getsockname()[1],
                                     "--rdzv-conf", "is_host=0,join_timeout=3")
        self.report(f"{took:.2f} s with join_timeout=3")
        self.assertRegex(job.err(), "(?i)no answer|silent|handshake|in time|within")

    def test_a_foreign_program_that_never_answers_without_tls(self):
        """The connection comes about without a word from the other side: that is no daemon yet."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            job, took = self.joining("127.0.0.1:%d" % s.getsockname()[1],
                                     "--rdzv-conf", "is_host=0,join_timeout=3,auth=none", env={})
        self.report(f"{took:.2f} s with join_timeout=3")
        self.assertLess(len(job.err().splitlines()), 40)

    def test_a_foreign_program_that_talks(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            over = threading.Event()

            def greet():
                s.settimeout(0.1)
                while not over.is_set():
                    try:
                        with s.accept()[0] as c:
                            c.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n")
                    except OSError:
                        pass

            greeter = threading.Thread(target=greet)
            greeter.start()
            try:
                job, took = self.joining("127.0.0.1:%d" % s.getsockname()[1],
                                         "--rdzv-conf", "is_host=0,join_timeout=2")
            finally:
                over.set()
                greeter.join()
        self.report(f"{took:.2f} s with join_timeout=2")
        self.assertRegex(job.err(), "ddprun daemon")

    def test_garbage_at_the_daemon_ends_nothing(self):
        port = free_port()
        endpoint = f"127.0.0.1:{port}"
        env = {"DDPRUN_TOKEN": "t"}
        host = self.start("--nnodes", "2", "--rdzv-endpoint", endpoint, "true", env=env)
        host.wait_for("waiting for nodes")
        for junk in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(300), bytes(5000), b""):
            with socket.create_connection(("127.0.0.1", port), 10) as s:
                s.sendall(junk)
        self.run_ddprun("--nnodes", "2", "--rdzv-endpoint", endpoint, "true", env=env)
        self.finish(host)

    def test_a_node_that_never_comes(self):
        port = free_port()
        job, took = self.joining(f"127.0.0.1:{port}", "--rdzv-conf", "join_timeout=2")
        self.report(f"{took:.2f} s with join_timeout=2")
        self.assertRegex(job.err(), r"waiting for nodes: 1 of 2 here .*\d s left")
        self.assertRegex(job.err(), "gave up after 2 s: 1 node .* of at least 2 joined")
        self.assertGreaterEqual(took, 1.9)

    def test_the_countdown_on_a_terminal(self):
        master, slave = os.openpty()
        self.addCleanup(os.close, master)
        process = subprocess.Popen(
            [DDPRUN, "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-conf",
             "join_timeout=3", "true"], stdin=slave, stdout=slave, stderr=slave,
            env={**clean_environment(), "DDPRUN_TOKEN": "t"})
        os.close(slave)
        shown = b""
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:
                break  # The terminal's last writer is gone.
            if not piece:
                break
            shown += piece
        self.assertEqual(process.wait(ddprun_case.PATIENCE), RENDEZVOUS)
        seconds = [int(n) for n in re.findall(rb"(\d+) s left", shown)]
        self.assertGreaterEqual(len(seconds), 1, shown)
        self.assertEqual(seconds, sorted(seconds, reverse=True))
        self.assertIn(b"gave up after 3 s", shown)


if __name__ == "__main__":
    ddprun_case.main()
