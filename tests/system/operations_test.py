"""The daemon as a service: its pages, its numbers, ddprunctl, its log, and its end and return while runs
go on."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import unittest
import urllib.error
import urllib.request

import ddprun_case
from ddprun_case import BIN, DdprunCase, PASS_GATE, PATIENCE, column, env_to, free_port, shell, wait_until

TOKEN = "a token that nobody may read in a log"
SYNC_WORKER = os.path.join(os.path.dirname(BIN), "tests", "sync_worker")
OPERATIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "operations.md")
WAIT = env_to() + PASS_GATE
SAMPLE = re.compile(r'^([a-z_]+)(?:\{((?:[a-z_]+="[^"\\\n]*",?)*)\})? (\S+)$')


def exposition(text):
    """{(name, labels): value} of Prometheus' text format; fails on any line that is not of it."""
    kinds, samples = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge", "histogram") and name not in kinds, line
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.match(line)
            assert match, line
            family = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert match[1] in kinds or kinds.get(family) == "histogram", line
            key = (match[1], match[2] or "")
            assert key not in samples, line
            samples[key] = float(match[3])
    return samples


class Operations(DdprunCase):
    def setUp(self):
        super().setUp()
        self.the_gate = self.gate()
        self.port, self.http_port = free_port(), free_port()
        self.env = {"DDPRUN_TOKEN": TOKEN}

    def daemon(self, *argv, state=True, env=None):
        options = ["--port", self.port, "--http-port", self.http_port, "--log-format", "json"]
        if state:
            os.makedirs(self.path("state"), exist_ok=True)
            options += ["--state-dir", self.path("state")]
        job = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), *map(str, options), *argv],
                                 env={**self.env, **(env or {})})
        job.wait_for("pages for operators")
        return job

    def node(self, nnodes, run_id="job", script=WAIT):
        return self.start("--nnodes", nnodes, "--nproc-per-node", "2", "--rdzv-id", run_id,
                          "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-conf",
                          "is_host=0,last_call_timeout=0.2", *shell(script), env=self.env)

    def get(self, page):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{page}", timeout=PATIENCE) as reply:
            return reply.read().decode()

    def runs(self):
        return {run["run_id"]: run for run in json.loads(self.get("/status"))["runs"]}

    def samples(self):
        return exposition(self.get("/metrics"))

    def ctl(self, *argv, code=0, env=None):
        done = subprocess.run([os.path.join(BIN, "ddprunctl"), *argv], capture_output=True, text=True,
                              timeout=PATIENCE, env={**ddprun_case.clean_environment(), **self.env,
                                                     "DDPRUN_ENDPOINT": f"127.0.0.1:{self.port}",
                                                     **(env or {})})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn(TOKEN, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def stop(self, daemon, number=signal.SIGTERM):
        daemon.signal(number)
        self.assertEqual(daemon.wait(), 0, daemon.text())
        lines = [json.loads(line) for line in daemon.err().splitlines()]
        self.assertTrue(all({"time", "level", "who", "text"} <= set(line) for line in lines))
        self.assertNotIn(TOKEN, daemon.err())
        return lines

    def test_what_sync_timers_count(self):
        self.daemon()
        script = f"exec {SYNC_WORKER} 66 3 20"  # Two windows, and a step after which each is heard.
        jobs = [self.node("2", script=script), self.node("2", script=script)]
        for job in jobs:
            self.finish(job)
        samples = self.samples()
        with open(OPERATIONS, encoding="utf-8") as page:
            listed = set(re.findall("`(ddprun_sync_[a-z_]+)`", page.read()))
        self.assertEqual({name for name, _ in samples if name.startswith("ddprun_sync_")}, listed)
        self.assertEqual(samples['ddprun_sync_steps_total', 'run="job"'], 4 * 66)
        told = re.findall(r"([0-9.]+) s exposed, ([0-9]+) bytes", "".join(job.out() for job in jobs))
        self.assertEqual(len(told), 4)
        exposed = sum(float(seconds) for seconds, _ in told)
        self.assertEqual(samples['ddprun_sync_bytes_total', 'run="job"'], sum(int(count) for _, count in told))
        self.assertAlmostEqual(samples['ddprun_sync_seconds_total', 'phase="exposed",run="job"'], exposed, 4)
        # The others wait for 20 ms in each step.
        self.assertGreater(samples['ddprun_sync_waited_seconds_total', 'run="job"'], 3 * 32 * 0.01)
        self.assertGreater(samples['ddprun_sync_late_steps_total', 'rank="3",run="job"'], 32)
        self.assertGreater(samples['ddprun_sync_late_seconds_total', 'phase="forward",rank="3",run="job"'], 32 * 0.01)
        self.assertGreater(samples['ddprun_sync_busbw_bytes_per_second', 'run="job"'], 0)

    def test_what_sync_timers_count_is_told_while_the_run_goes_on(self):
        self.daemon()
        job = self.node("1", script=f"exec {SYNC_WORKER} 100000 1 1")
        steps = 'ddprun_sync_steps_total', 'run="job"'
        first = wait_until(lambda: self.samples().get(steps), "no steps were told")
        wait_until(lambda: self.samples()[steps] > first, "no more steps were told")
        job.signal(signal.SIGTERM)
        self.finish(job, code=128 + signal.SIGTERM)

    def test_pages_and_numbers(self):
        daemon = self.daemon("--verbose")
        self.assertEqual(self.get("/healthz"), "ok\n")
        self.assertEqual(self.runs(), {})
        jobs = [self.node("2"), self.node("2")]
        self.wait_for_workers(4, jobs=jobs)
        run = self.runs()["job"]
        self.assertEqual((run["state"], run["round"], run["world_size"]), ("running", 0, 4), run)
        self.assertEqual([(n["group_rank"], n["base_rank"], n["local_world_size"], n["phase"])
                          for n in run["nodes"]], [(0, 0, 2, "seated"), (1, 2, 2, "seated")])
        samples = self.samples()
        self.assertEqual(samples['ddprun_runs', 'state="running"'], 1)
        self.assertEqual(samples['ddprun_nodes', 'phase="seated"'], 2)
        self.assertEqual(samples['ddprun_workers', ""], 4)
        self.assertEqual(samples['ddprun_connections', ""], 2)
        self.assertEqual(samples['ddprun_rounds_sealed_total', ""], 1)
        self.assertGreaterEqual(samples['ddprun_messages_total', 'kind="join"'], 2)
        self.assertGreater(samples['ddprun_journal_records_total', ""], 1)
        self.assertGreater(samples['process_resident_memory_bytes', ""], 1 << 20)
        self.assertGreater(samples['ddprun_loop_lag_seconds_count', ""], -1)
        self.the_gate.open()
        for job in jobs:
            self.finish(job)
        self.assertEqual(self.samples()['ddprun_verdicts_total', 'kind="success"'], 1)
        self.assertEqual(self.runs()["job"]["verdict"]["kind"], "success")
        lines = self.stop(daemon)
        about = [line for line in lines if line.get("run") == "job"]
        self.assertTrue(any("round 0 runs" in line["text"] for line in about), lines)
        self.assertTrue(any(line.get("peer") == "127.0.0.1" for line in lines), lines)

    def test_pages_on_loopback_are_for_requests_that_name_this_machine(self):
        self.daemon()

        def status(host):
            request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}/status", headers={"Host": host})
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                    return reply.status
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        for own in ("127.0.0.1", f"localhost:{self.http_port}", f"[::1]:{self.http_port}", socket.gethostname()):
            self.assertEqual(status(own), 200, own)
        for other in ("evil.example", f"evil.example:{self.http_port}", "127.0.0.1.evil.example"):
            self.assertEqual(status(other), 403, other)

    def test_strangers_are_counted_and_hold_nobody_up(self):
        self.daemon()
        # Nobody of these ever says a whole request, on either port.
        mute = [socket.create_connection(("127.0.0.1", port)) for port in
                [self.http_port] * 20 + [self.port] * 20]
        for connection in mute[:10]:
            connection.send(b"GET /metrics HT")
        with socket.create_connection(("127.0.0.1", self.port)) as babbler:
            babbler.send(b"GET / HTTP/1.1\r\n\r\n")
            wait_until(lambda: self.samples()['ddprun_connections_refused_total', 'reason="wrong_token"'],
                       "the refusal to be counted")
        self.assertEqual(self.samples()["ddprun_handshakes", ""], 20)
        for connection in mute:
            connection.close()
        wait_until(lambda: self.samples()['ddprun_connections_refused_total', 'reason="hung_up"'] == 20,
                   lambda: self.get("/metrics"))
        for page, status in (("/nix", 404), ("/status?run=nix", 404), ("/status?run=%", 400)):
            with self.assertRaises(urllib.error.HTTPError) as error:
                self.get(page)
            self.assertEqual(error.exception.code, status)
            error.exception.close()

    def test_ddprunctl_shows_and_cancels(self):
        self.daemon()
        self.assertEqual(self.ctl("status"), "no runs\n")
        jobs = [self.node("2"), self.node("2")]
        other = self.node("1", "other")
        self.wait_for_workers(4, prefix="env.0.4", jobs=jobs)
        self.wait_for_workers(2, prefix="env.0.2", jobs=[other])
        self.assertRegex(self.ctl("status"), r"(?m)^job +running +0 +0 of 0 +2 of 2 +4 +\S")
        self.assertIn("other", self.ctl("status"))
        host = self.runs()["job"]["nodes"][0]["host"]
        self.assertEqual(self.ctl("nodes", "--run", "job").count(host + " "), 2)
        self.assertEqual(len(json.loads(self.ctl("nodes", "--json"))["runs"]), 2)
        self.assertIn("there are: job, other", self.ctl("cancel", "nix", code=1))
        self.assertIn("give both sides the same token",
                      self.ctl("status", code=1, env={"DDPRUN_TOKEN": "wrong"}))
        self.assertIn("nothing listens at 127.0.0.1:",
                      self.ctl("status", "-e", f"127.0.0.1:{free_port()}", code=1))
        self.ctl("frob", code=2)
        self.assertIn("is cancelled", self.ctl("cancel", "job", "--reason", "wrong data"))
        for job in jobs:
            self.finish(job, 143)
            self.assertRegex(job.err(), r"cancelled by \S+@\S+: wrong data")
        self.assertIn("verdict: interrupted, exit code 143", self.ctl("status", "--run", "job"))
        self.assertEqual(self.runs()["other"]["state"], "running")
        self.the_gate.open()
        self.finish(other)

    def test_a_drained_node_ends_well_and_the_run_goes_on(self):
        self.daemon()
        jobs = [self.node("1:2"), self.node("1:2")]
        wait_until(lambda: self.runs().get("job", {}).get("world_size") == 4, "the round of two")
        self.wait_for_workers(4, prefix="env.0.4", jobs=jobs)
        seen = len(self.arrivals("env.0.2"))
        nodes = self.runs()["job"]["nodes"]
        if nodes[0]["host"] == nodes[1]["host"]:
            self.assertIn("name one by its id", self.ctl("drain", nodes[0]["host"], code=1))
        self.assertIn("is drained", self.ctl("drain", nodes[1]["id"], "--reason", "bad fan"))
        wait_until(lambda: any(job.ended() for job in jobs), "the drained launcher's end")
        drained = next(job for job in jobs if job.ended())
        self.finish(drained, 0)
        wait_until(lambda: len(self.arrivals("env.0.2")) == seen + 2, "the round of one")
        run = self.runs()["job"]
        self.assertEqual((len(run["nodes"]), run["restart_count"]), (1, 0), run)
        self.the_gate.open()
        self.finish(next(job for job in jobs if job is not drained))

    def test_a_daemon_with_a_journal_may_be_stopped_and_started_again(self):
        """systemctl restart, as the workers see it: not at all."""
        daemon = self.daemon()
        jobs = [self.node("2"), self.node("2")]
        self.wait_for_workers(4, jobs=jobs)
        before = sorted(p.pid for job in jobs for p in job.processes())
        lines = self.stop(daemon)
        self.assertIn("the runs continue", lines[-1]["text"])
        with self.assertRaises(OSError):
            self.get("/healthz")
        self.assertIn("is ddprun-rendezvous running there?", self.ctl("status", code=1))
        self.daemon()
        wait_until(lambda: self.samples()["ddprun_connections", ""] == 2, "both agents to come back")
        run = self.runs()["job"]
        self.assertEqual((run["state"], run["round"], run["restart_count"]), ("running", 0, 0), run)
        self.assertEqual(sorted(p.pid for job in jobs for p in job.processes()), before)
        self.the_gate.open()
        for job in jobs:
            self.finish(job)
        self.assertEqual(len(self.arrivals()), 4)  # Nothing was started twice.
        wait_until(lambda: self.runs()["job"]["state"] == "ended", "the verdict")

    def test_a_frozen_agent_is_not_lost_while_the_daemon_ends(self):
        """Its link takes longer to close than silence is allowed to last; that is nobody's fault."""
        daemon = self.daemon()
        jobs = [self.node("2"), self.node("2")]
        self.wait_for_workers(4, jobs=jobs)
        frozen = jobs[1].agents()[0].pid
        os.kill(frozen, signal.SIGSTOP)
        self.addCleanup(lambda: jobs[1].ended() or os.kill(frozen, signal.SIGCONT))
        self.stop(daemon)
        os.kill(frozen, signal.SIGCONT)
        self.daemon()
        wait_until(lambda: self.samples()["ddprun_connections", ""] == 2, "both agents to come back")
        run = self.runs()["job"]
        self.assertEqual((run["state"], run["round"]), ("running", 0), run)
        self.the_gate.open()
        for job in jobs:
            self.finish(job)
        self.assertEqual(len(self.arrivals()), 4)

    def test_without_a_journal_or_on_request_its_end_ends_the_runs(self):
        for argv, state in (([], False), (["--end-runs-on-exit"], True)):
            with self.subTest(state=state):
                daemon = self.daemon(*argv, state=state)
                job = self.node("1", script=env_to(f"state{int(state)}") + PASS_GATE)
                self.wait_for_workers(2, prefix=f"state{int(state)}", jobs=[job])
                self.stop(daemon)
                self.finish(job, 143)
                self.assertIn("the rendezvous daemon was told to end", job.err())

    def test_the_service_manager_is_told(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(self.path("notify"))
            manager.settimeout(PATIENCE)
            daemon = self.daemon(env={"NOTIFY_SOCKET": self.path("notify"), "WATCHDOG_USEC": "300000"})
            self.assertTrue(manager.recv(4096).startswith(b"READY=1\n"))
            for _ in range(3):
                self.assertEqual(manager.recv(4096), b"WATCHDOG=1")
            daemon.signal(signal.SIGTERM)
            while manager.recv(4096) != b"STOPPING=1":
                pass
            self.assertEqual(daemon.wait(), 0)

    def test_a_port_in_use_is_an_error_that_says_so(self):
        self.daemon()
        second = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--port", "1", "--port", "0",
                                     "--http-port", str(self.http_port)], env=self.env)
        self.assertEqual(second.wait(), 1)
        self.assertIn("ddress already in use", second.err())

    def pages_of_the_node_that_hosts(self, nodes):
        job = self.start("--http-port", self.http_port, "--local-nodes", nodes, "--rdzv-id", "paged", *shell(WAIT))
        job.wait_for(rf"pages for operators.*127\.0\.0\.1:{self.http_port}")
        wait_until(lambda: self.runs().get("paged", {}).get("world_size") == nodes, lambda: self.get("/status"))
        self.assertEqual(self.get("/healthz").strip(), "ok")
        self.assertEqual(self.samples()["ddprun_nodes", 'phase="seated"'], nodes)
        self.the_gate.open()
        self.finish(job)

    def test_the_node_that_hosts_the_daemon_has_its_pages(self):
        self.pages_of_the_node_that_hosts(1)

    def test_the_first_of_two_nodes_has_the_pages_of_both(self):
        self.pages_of_the_node_that_hosts(2)

    def test_a_port_of_pages_that_is_taken_ends_the_run_at_once(self):
        with socket.create_server(("127.0.0.1", self.http_port)):
            job = self.start("--http-port", self.http_port, "true")
            self.finish(job, 1)
        self.assertIn("the pages of --http-port: ", job.err())
        self.assertIn("ddress already in use", job.err())

    def test_a_token_that_protects_nothing_is_refused_or_warned_of(self):
        daemon = [os.path.join(BIN, "ddprun-rendezvous"), "--no-auth", "--port", "0"]
        refused = self.start_program([*daemon, "--token-file", self.path("token")])
        self.assertEqual(refused.wait(), 2)
        self.assertIn("excludes", refused.err())
        for variable in ("DDPRUN_TOKEN", "DDPRUN_TOKEN_FILE"):
            warned = self.start_program(daemon, env={variable: "x"})
            warned.wait_for("(?i)listening")
            self.assertIn(f"--no-auth: the token in {variable} is not used; everyone who reaches 127.0.0.1 can join",
                          warned.err())
            warned.signal(signal.SIGTERM)
            self.assertEqual(warned.wait(), 0)
        silent = self.start_program(daemon)
        silent.wait_for("(?i)listening")
        self.assertNotIn("--no-auth", silent.err())

    def test_a_token_that_can_be_guessed_is_warned_of_where_others_listen(self):
        daemon = [os.path.join(BIN, "ddprun-rendezvous"), "--port", "0", "--address"]
        for address, token, said in (("0.0.0.0", "swordfish", "the token has only 9 characters"),
                                     ("0.0.0.0", "f" * 16, None), ("127.0.0.1", "swordfish", None)):
            started = self.start_program([*daemon, address], env={"DDPRUN_TOKEN": token})
            started.wait_for("(?i)listening")
            if said:
                self.assertIn(said, started.err())
            self.assertNotIn(token, started.err())
            self.assertEqual("the token has only" in started.err(), bool(said))
            started.signal(signal.SIGTERM)
            self.assertEqual(started.wait(), 0)

    def test_a_node_that_hosts_a_run_warns_of_a_token_that_can_be_guessed(self):
        for endpoint, warns in (("0.0.0.0:0", True), ("127.0.0.1:0", False)):
            run = self.start("--nnodes", "1", "--rdzv-endpoint", endpoint, "--no-python", "true",
                             env={**ddprun_case.clean_environment(), "DDPRUN_TOKEN": "swordfish"})
            self.assertEqual(run.wait(), 0, run.err())
            self.assertEqual("the token has only 9 characters" in run.err(), warns, run.err())

    def test_the_unit_file_is_sound(self):
        if not shutil.which("systemd-analyze"):
            raise unittest.SkipTest("there is no systemd-analyze")
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        with open(os.path.join(root, "deploy/systemd/ddprun-rendezvous.service.in"), encoding="ascii") as f:
            unit = f.read().replace("@CMAKE_INSTALL_FULL_BINDIR@", BIN)
        with open(self.path("ddprun-rendezvous.service"), "w", encoding="ascii") as f:
            f.write(unit)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no",
                               self.path("ddprun-rendezvous.service")],
                              capture_output=True, text=True, timeout=PATIENCE)
        # It also speaks of other units of this machine; only what it says of ours counts.
        ours = [line for line in done.stderr.splitlines() if "ddprun" in line]
        self.assertEqual(ours, [], done.stderr)
        # The options in it are the program's.
        command = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
        help_text = subprocess.run([os.path.join(BIN, "ddprun-rendezvous"), "--help"],
                                   capture_output=True, text=True, timeout=PATIENCE).stdout
        for flag in re.findall(r" (--[a-z-]+)", command):
            self.assertIn(flag + " ", help_text)


if __name__ == "__main__":
    ddprun_case.main()
