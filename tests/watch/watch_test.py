"""What can be seen of runs without having thought of a flag: ddprunctl history, top, logs and stacks."""

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import ddprun_case
from ddprun_case import BIN, DdprunCase, PASS_GATE, PATIENCE, env_to, free_port, main, shell, wait_until

CTL = os.path.join(BIN, "ddprunctl")
PLANTED = os.path.join(os.path.dirname(BIN), "tests", "planted_worker")
ENDLESS = 10**8  # Steps.


class WatchCase(DdprunCase):
    def environment(self, **more):
        env = {**ddprun_case.clean_environment(), "XDG_STATE_HOME": self.path("state"), "TZ": "UTC", **more}
        return {name: value for name, value in env.items() if value is not None}

    def ctl(self, *argv, code=0, **env):
        done = subprocess.run([CTL, *map(str, argv)], capture_output=True, text=True, timeout=PATIENCE, check=False,
                              errors="replace", env=self.environment(**env))
        if code is not None:
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def history(self):
        return json.loads(self.ctl("history", "--json").stdout)["runs"]

    def records(self):
        found = []
        for folder, _, files in os.walk(self.path("state")):
            found += [os.path.join(folder, name) for name in files]
        return sorted(found)

    def tops(self, *argv):
        """The runs that top knows, or none while they begin."""
        done = self.ctl("top", "--once", "--json", *argv, code=None)
        return json.loads(done.stdout)["runs"] if done.returncode == 0 else []


class Health(WatchCase):
    """`ddprunctl health`, as a probe calls it: without token, endpoint and run."""

    def test_it_is_well_while_the_agents_answer(self):
        self.assertIn("no run of yours is in progress", self.ctl("health", code=1).stderr)
        gate = self.gate()
        job = self.start("--nproc-per-node", "2", "--rdzv-id", "job1", *shell(env_to() + PASS_GATE))
        self.wait_for_workers(2, jobs=[job])
        wait_until(lambda: self.ctl("health", code=None).returncode == 0, job.text)
        self.assertEqual(self.ctl("health").stdout, "run job1: running, round 0, 2 ranks\n")
        self.assertEqual(self.ctl("health", "--run", "job1").stdout, "run job1: running, round 0, 2 ranks\n")
        self.assertIn("no run 'job2' of yours", self.ctl("health", "--run", "job2", code=1).stderr)
        [agent] = job.agents()
        os.kill(agent.pid, signal.SIGSTOP)
        self.assertIn("stopped by a signal", self.ctl("health", code=1).stderr)
        os.kill(agent.pid, signal.SIGCONT)
        self.assertEqual(self.ctl("health").returncode, 0)
        gate.open()
        self.finish(job)
        self.assertIn("no run of yours is in progress", self.ctl("health", code=1).stderr)


class History(WatchCase):
    def test_a_failed_run_is_remembered_with_its_command_its_verdict_and_last_words(self):
        said = self.path("said")  # Rank 1 fails once rank 0 has said its line.
        script = (f'echo "step $RANK"; [ "$RANK" = 0 ] && touch {said} && exec sleep 600; '
                  f'until [ -e {said} ]; do sleep 0.01; done; echo "loss is NaN" >&2; exit 7')
        self.run_ddprun("--nproc-per-node", "2", "--rdzv-id", "job9", *shell(script), code=7)
        [run] = self.history()
        self.assertEqual((run["run_id"], run["state"], run["exit_code"], run["world_size"]), ("job9", "ended", 7, 2))
        self.assertTrue(run["command"].startswith("ddprun --nproc-per-node 2 --rdzv-id job9 /bin/sh -c 'echo"), run)
        self.assertEqual(run["verdict"]["kind"], "worker_failed")
        self.assertEqual(run["verdict"]["first_cause"]["last_words"], "loss is NaN")
        self.assertIn("parts_s", run["verdict"]["ledger"])
        table = self.ctl("history").stdout
        self.assertRegex(table, r"(?m)^\S +1 +job9 +(today|yesterday) \d\d:\d\d +.* 2 +0 of 0 +rank 1 on .*: loss is NaN$")
        self.assertIn("rank 1 (local rank 1", self.ctl("history", "job9").stdout)
        self.assertEqual(self.ctl("history", "1").stdout, self.ctl("history", "job9").stdout)
        said = self.ctl("logs", "job9")
        self.assertEqual(sorted(said.stdout.splitlines()), ["[0]: step 0", "[1]: step 1"])
        self.assertEqual(said.stderr, "[1]: loss is NaN\n")
        self.assertEqual(self.ctl("logs", "job9", 0).stdout, "[0]: step 0\n")
        self.assertIn("nothing is known here", self.ctl("logs", "job9", 2, code=1).stderr)

    def test_a_run_that_ended_well_is_remembered_and_records_are_for_their_user_only(self):
        for _ in range(2):
            self.run_ddprun("--nproc-per-node", "2", *shell("echo done"))
        runs = self.history()
        self.assertEqual([run["verdict"]["kind"] for run in runs], ["success", "success"])
        self.assertGreaterEqual(runs[0]["started"], runs[1]["started"])
        self.assertEqual(self.ctl("logs", code=0).stdout.count("done"), 2)  # Of the last run.
        for path in self.records():
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            self.assertEqual(os.stat(os.path.dirname(path)).st_mode & 0o777, 0o700)

    def test_two_nodes_of_one_launcher_are_one_record(self):
        self.run_ddprun("--local-nodes", "2", "--nproc-per-node", "2", *shell("echo rank $RANK"))
        [run] = self.history()
        self.assertEqual((run["world_size"], run["nodes"]), (4, 2))
        said = self.ctl("logs").stdout
        self.assertEqual(sorted(said.splitlines()), [f"[{rank}]: rank {rank}" for rank in range(4)])

    def test_a_run_whose_launcher_was_killed_has_no_end(self):
        job = self.start(*shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(1, jobs=[job])
        self.assertEqual(self.history()[0]["state"], "running")
        job.signal(signal.SIGKILL)
        job.wait()
        wait_until(lambda: self.history()[0]["state"] == "vanished", self.history)
        self.assertIn("no end is known", self.ctl("history").stdout)
        self.assertIn("the run is over", self.ctl("stacks", "1", 0, code=1).stderr)

    def test_an_agent_that_was_killed_and_a_user_who_stops_it_are_told_apart(self):
        job = self.start(*shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(1, jobs=[job])
        os.kill(job.agents()[0].pid, signal.SIGKILL)
        job.wait()
        self.assertEqual(self.history()[0]["verdict"]["kind"], "agent_killed")
        job = self.start("--shutdown-timeout", "1", *shell(env_to("second") + "exec sleep 600"))
        self.wait_for_workers(1, prefix="second", jobs=[job])
        job.signal(signal.SIGTERM)
        job.wait()
        wait_until(lambda: self.history()[0]["state"] == "ended", self.history)
        self.assertEqual(self.history()[0]["verdict"]["kind"], "interrupted")

    def test_records_are_bounded_and_half_a_record_is_none(self):
        for _ in range(2):
            self.run_ddprun(*shell("true"))
        folder = os.path.dirname(self.records()[0])
        with open(self.records()[0], encoding="utf-8") as f:
            text = f.read()
        for number in range(60):
            path = os.path.join(folder, f"20200101T0000{number:02}Z-0.json")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text if number % 2 else text[:len(text) // 2])
            os.utime(path, (number, number))
        self.run_ddprun(*shell("true"))
        self.assertEqual(len(self.records()), 50)
        runs = self.history()
        self.assertGreaterEqual(len(runs), 3)
        self.assertLess(len(runs), 50)  # Half of the old ones cannot be read.
        self.assertEqual(self.ctl("history").returncode, 0)

    def test_nothing_is_kept_where_nobody_wants_it_or_nothing_can_be_written(self):
        self.run_ddprun(*shell("true"), env={"DDPRUN_HISTORY": "0"})
        with open(self.path("file"), "w", encoding="ascii"):
            pass
        self.run_ddprun(*shell("true"), env={"XDG_STATE_HOME": self.path("file")})
        self.run_ddprun(*shell("true"), env={"XDG_STATE_HOME": "", "HOME": ""})
        self.run_ddprun(*shell("true"), env={"XDG_STATE_HOME": "", "HOME": self.path("nonexistent")})
        self.assertEqual(self.records(), [])
        self.assertFalse(os.path.exists(self.path("nonexistent")))  # A home is never made.
        self.assertIn("there are no records of your runs", self.ctl("history").stdout)
        self.assertIn("there are no records of your runs", self.ctl("history", "job9", code=1).stderr)

    def test_a_run_that_cannot_be_remembered_can_be_watched_while_it_lives(self):
        """As in a container whose home is missing or read-only."""
        with open(self.path("file"), "w", encoding="ascii"):
            pass
        env = {"XDG_STATE_HOME": self.path("file"), "TMPDIR": self.temporary}
        gate = self.gate()
        job = self.start("--nproc-per-node", "2", "--rdzv-id", "homeless",
                         *shell('echo "first $RANK"; ' + env_to() + PASS_GATE), env=env)
        self.wait_for_workers(2, jobs=[job])
        wait_until(lambda: self.ctl("logs", "homeless", code=None, **env).stdout.count("first") == 2, job.text)
        self.assertIn("homeless", self.ctl("history", **env).stdout)
        self.assertIn("homeless", self.ctl("top", "--once", **env).stdout)
        self.assertRegex(self.ctl("stacks", "homeless", 1, PATH=self.path("empty"), **env).stdout, r"^rank 1 is pid \d+")
        gate.open()
        self.finish(job)
        self.assertNotIn("homeless", self.ctl("history", **env).stdout)


class Top(WatchCase):
    def test_a_run_without_a_daemon_shows_its_steps_its_rate_and_who_is_late(self):
        job = self.start("--nproc-per-node", "2", "--rdzv-id", "job7", PLANTED, f"steps={ENDLESS}", "forward=5", "late=1:40")
        wait_until(lambda: any(run.get("steps_per_s", 0) > 0 and
                               any(rank["late_ms"] > 5 for node in run["nodes"] for rank in node.get("ranks", []))
                               for run in self.tops()), lambda: f"{self.tops()}\n{job.text()}")
        [run] = self.tops()
        self.assertEqual((run["run_id"], run["state"], run["world_size"]), ("job7", "running", 2))
        late = {rank["rank"]: rank["late_ms"] for rank in run["nodes"][0]["ranks"]}
        self.assertGreater(late[1], 5)
        self.assertLess(late[0], late[1])
        self.assertGreater(run["step"], 0)
        self.assertLess(run["steps_per_s"], 1000 / 40)  # It cannot be faster than what was planted.
        self.assertIn("waiting", run["parts"])
        self.assertEqual(run["step"] + run["steps_left"], ENDLESS)  # Which its workers have told.
        self.assertGreater(run["eta_s"], 0)
        self.assertGreater(min(rank["resident_bytes"] for rank in run["nodes"][0]["ranks"]), 10**6)
        screen = self.ctl("top", "--once").stdout
        self.assertRegex(screen, r"job7 .* running  2 ranks on 1 node  round 0  restart 0 of 0")
        self.assertRegex(screen, r"step [\d,]+ of 100,000,000  [\d.]+ steps/s  [\d:]+ left  late: rank 1, [\d.]+ ms a step")
        self.assertRegex(screen, r"goodput [\d.]+ %")
        self.assertIn("no run 'other'", self.ctl("top", "--run", "other", code=1).stderr)

    def test_two_nodes_of_one_launcher_show_the_ranks_of_both(self):
        job = self.start("--local-nodes", "2", "--nproc-per-node", "2", PLANTED, f"steps={ENDLESS}", "forward=20")
        wait_until(lambda: sorted(rank["rank"] for run in self.tops() for node in run["nodes"]
                                  for rank in node.get("ranks", [])) == [0, 1, 2, 3],
                   lambda: f"{self.tops()}\n{job.text()}")
        self.assertEqual(len(self.tops()), 1)

    def test_all_runs_are_printed_and_one_that_is_chosen_alone(self):
        for run in ("first", "second"):
            self.start("--rdzv-id", run, "--nproc-per-node", "1", *shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(2)
        wait_until(lambda: [run["state"] for run in self.tops()] == ["running"] * 2, self.tops)
        said = self.ctl("top", "--once").stdout
        for run in ("first", "second"):
            self.assertRegex(said, rf"(?m)^ {run}  . running .*\(run [12] of 2\)$")
            self.assertRegex(self.ctl("top", "--once", "--run", run).stdout, rf"^ {run}  . running [^(]*\n")

    def test_a_daemon_shows_all_nodes_and_what_happened(self):
        port = free_port()
        token = {"DDPRUN_TOKEN": "a token of the tests"}
        daemon = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--port", str(port)], env=token)
        there = ("-e", f"127.0.0.1:{port}")
        wait_until(lambda: self.ctl("status", *there, code=None, **token).returncode == 0, daemon.text)
        for _ in range(2):
            self.start("--rdzv-id", "job7", "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint", f"127.0.0.1:{port}",
                       "--rdzv-conf", "is_host=0", PLANTED, f"steps={ENDLESS}", "forward=20", env=token)

        def runs():
            return json.loads(self.ctl("top", *there, "--json", **token).stdout)["runs"]

        wait_until(lambda: any(run.get("steps_per_s", 0) > 0 and len(run["nodes"]) == 2 and
                               all(len(node.get("ranks", [])) == 2 for node in run["nodes"]) for run in runs()),
                   lambda: f"{runs()}")
        self.assertTrue(runs()[0]["events"])
        self.assertIn("token", self.ctl("top", *there, code=1, DDPRUN_TOKEN="other").stderr)

    def test_on_a_terminal_it_redraws_takes_keys_and_gives_the_terminal_back(self):
        job = self.start("--nproc-per-node", "2", "--rdzv-id", "job7", PLANTED, f"steps={ENDLESS}", "forward=20")
        wait_until(lambda: any(node.get("ranks") for run in self.tops() for node in run["nodes"]), job.text)
        main_end, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        before = termios.tcgetattr(other)
        top = subprocess.Popen([CTL, "top", "--interval", "0.2"], stdin=other, stdout=other, stderr=other,
                               env=self.environment(TERM="xterm", LC_ALL="C.UTF-8"))
        self.addCleanup(lambda: (top.kill(), top.wait()))
        seen = b""

        def shows(text, since=0):
            nonlocal seen
            while select.select([main_end], [], [], 0)[0]:
                seen += os.read(main_end, 65536)
            return text in seen[since:]

        wait_until(lambda: shows(b"q quit"), lambda: seen)
        self.assertTrue(seen.startswith(b"\x1b[?1049h"), seen[:40])
        self.assertFalse(shows(b"local 0"))
        for part in (b"\x1b", b"[", b"C"):  # As over ssh: a key in three packets.
            os.write(main_end, part)
            wait_until(lambda: not select.select([other], [], [], 0)[0], "top to read it")
        wait_until(lambda: shows(b"local 0"), lambda: seen)
        os.write(main_end, b"\x1b[D\x1b[B\x1b[A\x1b[C")  # And several keys in one.
        os.write(main_end, b"?")
        wait_until(lambda: shows(b"late nodes first"), lambda: seen)
        os.write(main_end, b"h")
        mark = len(seen)
        wait_until(lambda: shows(b"local 0", mark), lambda: seen)
        mark = len(seen)
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        top.send_signal(signal.SIGWINCH)
        wait_until(lambda: seen[mark:].count(b"\r\n") >= 29 or shows(b"\0"), lambda: seen[mark:])
        os.write(main_end, b"q")
        wait_until(lambda: shows(b"") and top.poll() is not None, "top to end")
        self.assertEqual(top.returncode, 0)
        self.assertTrue(shows(b"\x1b[?1049l"))
        self.assertEqual(termios.tcgetattr(other)[3], before[3])
        os.close(main_end)
        os.close(other)


class MuteAgent(WatchCase):
    """An agent that stands still, which is when somebody looks."""

    def stopped(self, *flags):
        job = self.start("--nproc-per-node", "2", "--rdzv-id", "stood", *flags, *shell("echo here; " + env_to() + "exec sleep 600"))
        self.workers = self.wait_for_workers(2 * (2 if flags else 1), jobs=[job])
        agents = sorted(agent.pid for agent in job.agents())
        agent = agents[-1]
        os.kill(agent, signal.SIGSTOP)
        self.addCleanup(lambda: job.ended() or os.kill(agent, signal.SIGCONT))
        self.sentence = (f"run stood is in progress (launcher {job.pid}), but its agent ({agent}, stopped by a signal) "
                         "does not answer")
        return job, agent

    def test_each_command_says_which_process_does_not_answer_and_stacks_needs_none(self):
        self.stopped()
        self.assertIn(self.sentence, " ".join(self.ctl("top", "--once").stdout.split()))
        [run] = self.tops("--run", "stood")
        self.assertEqual((run["run_id"], run["state"], run["waiting_for"]), ("stood", "no answer", self.sentence))
        self.assertIn(self.sentence, self.ctl("logs", "stood", code=1).stderr)
        self.assertIn(self.sentence, self.ctl("logs", "stood", 1, code=1).stderr)
        os.mkdir(self.path("empty"))
        stacks = self.ctl("stacks", "stood", 1, PATH=self.path("empty"))
        self.assertRegex(stacks.stdout, r"^rank 1 is pid \d+: sleep 600\n")
        self.assertRegex(stacks.stdout, r"thread \d+ \(sleep\), state S")
        self.assertRegex(stacks.stderr, r"does not answer; process \d+ was started as rank 1")
        self.assertIn("no worker here was started as rank 7", self.ctl("stacks", "stood", 7, code=1).stderr)

    def test_of_two_agents_the_one_that_answers_is_shown_and_the_other_named(self):
        _, agent = self.stopped("--local-nodes", "2")
        [run] = self.tops()
        self.assertEqual(run["state"], "running")
        self.assertIn(f"1 of its 2 agents ({agent}, stopped by a signal) does not answer", run["events"][-1]["text"])
        said = self.ctl("logs", "stood", code=1)
        self.assertIn("here", said.stdout)
        self.assertIn("1 of its 2 agents", said.stderr)

    def test_top_takes_keys_while_it_waits(self):
        self.stopped()
        main_end, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        agent_of_nobody = socket.socket(socket.AF_UNIX)  # Takes questions, answers none, and is not stopped.
        self.addCleanup(agent_of_nobody.close)
        folder = self.history()[0]["folder"]
        os.unlink(folder + "/node-0")
        agent_of_nobody.bind(folder + "/node-0")
        agent_of_nobody.listen()
        top = subprocess.Popen([CTL, "top"], stdin=other, stdout=other, stderr=other,
                               env=self.environment(TERM="xterm", LC_ALL="C.UTF-8"))
        self.addCleanup(lambda: (top.poll() is None and top.kill(), top.wait()))
        agent_of_nobody.settimeout(PATIENCE)
        asked = agent_of_nobody.accept()[0]  # The question is on its way from here on.
        self.addCleanup(asked.close)
        seen = b""

        def shows(text):
            nonlocal seen
            while select.select([main_end], [], [], 0)[0]:
                seen += os.read(main_end, 65536)
            return text in seen

        wait_until(lambda: shows(b"waiting for an answer"), lambda: seen)
        os.write(main_end, b"q")
        self.assertEqual(top.wait(PATIENCE), 0)
        self.assertFalse(shows(b"does not answer"))  # It did not wait for the end of the question.
        os.close(main_end)
        os.close(other)


class DrainedNode(WatchCase):
    """An agent that has left a run that goes on."""

    def test_what_is_said_of_the_run_is_said_by_the_one_that_is_left(self):
        env = {"DDPRUN_TOKEN": "a token of twenty letters"}
        endpoint, run = f"127.0.0.1:{free_port()}", "drained"
        job = self.start("--local-nodes", "2", "--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-id", run,
                         "--rdzv-endpoint", endpoint, "--rdzv-conf", "last_call_timeout=0.2",
                         *shell("echo rank $RANK of $WORLD_SIZE; exec sleep 600"), env=self.environment(**env))
        wait_until(lambda: [one["world_size"] for one in self.tops()] == [2], job.text)
        self.ctl("-e", endpoint, "drain", self.tops()[0]["nodes"][1]["id"], **env)
        wait_until(lambda: [one["world_size"] for one in self.tops()] == [1], job.text)
        self.assertIn("was started without --bundle-folder", self.ctl("capture", run, code=1).stderr)
        wait_until(lambda: "rank 0 of 1\n" in self.ctl("logs", run).stdout, job.text)
        self.assertIn("rank 0 is pid", self.ctl("stacks", run, 0).stdout)
        self.assertIn("no process on this machine; the run has 1 rank", self.ctl("stacks", run, 1, code=1).stderr)
        self.ctl("health", "--run", run)
        self.ctl("-e", endpoint, "cancel", run, **env)
        job.wait()


class StatusLine(WatchCase):
    def shown(self, *argv, until=None, tty=(1, 2), **env):
        """What a terminal of 100 columns is sent, until `until` says that it is enough or ddprun has ended."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        environment = self.environment(TMPDIR=self.temporary, XDG_RUNTIME_DIR=self.temporary, D=self.dir, TERM="xterm",
                                       LC_ALL="C.UTF-8", CI=None, GITHUB_ACTIONS=None, NO_COLOR=None, DDPRUN_CONFIG="")
        environment.update(env)
        with open(self.path("elsewhere"), "wb") as elsewhere:
            job = subprocess.Popen([ddprun_case.DDPRUN, *argv], stdin=subprocess.DEVNULL, env=environment,
                                   stdout=theirs if 1 in tty else elsewhere, stderr=theirs if 2 in tty else elsewhere)
        os.close(theirs)
        self.addCleanup(lambda: (job.poll() is None and job.kill(), job.wait()))
        seen = b""

        def ends():
            nonlocal seen
            while select.select([ours], [], [], 0)[0]:
                try:
                    part = os.read(ours, 65536)
                except OSError:
                    part = b""
                if not part:
                    return True
                seen += part
            return until is not None and until(seen)

        wait_until(ends, lambda: seen)
        if job.poll() is None and until is not None:
            job.terminate()
            until = None
            wait_until(ends, lambda: seen)
        job.wait(PATIENCE)
        os.close(ours)
        return seen

    def test_it_shows_steps_below_the_workers_lines_and_is_gone_at_the_end(self):
        seen = self.shown("--nproc-per-node", "2", "--rdzv-id", "job7", "--shutdown-timeout", "1", PLANTED, f"steps={ENDLESS}",
                          "forward=20", until=lambda seen: b" steps/s" in seen).decode()
        self.assertRegex(seen, "\r\x1b\\[K\x1b\\[34m\u25cf\x1b\\[0m job7  2 ranks  0:00:\\d\\d  step [\\d,]+  [\\d.]+ steps/s")
        last = seen.rindex("\u25cf job7" if "\u25cf job7" in seen else " job7  2 ranks")
        self.assertIn("\r\x1b[K", seen[last:])
        self.assertNotIn("job7  2 ranks", seen.rsplit("\r\x1b[K", 1)[1])

    def test_lines_of_workers_and_of_ddprun_begin_where_it_was(self):
        script = 'while :; do echo "line of $RANK"; sleep 0.1; done'
        seen = self.shown("--nproc-per-node", "2", "--shutdown-timeout", "1", *shell(script),
                          until=lambda seen: seen.count(b" 2 ranks  0:00:") > 20).decode()
        self.assertIn(" 2 ranks  0:00:", seen)
        for line in seen.replace("\x1b[34m", "").replace("\x1b[0m", "").split("\r\n"):
            kept = line.rsplit("\r\x1b[K", 1)[-1]  # What the terminal shows of it in the end.
            self.assertNotRegex(kept, r"ranks  \d.*(\[default|ddprun:)", seen)
            if "line of" in kept:
                self.assertRegex(kept, r"^\[default\d\]:line of \d$", seen)

    def test_it_keeps_away_where_nobody_looks(self):
        worker = shell("touch $D/begun; exec sleep 600")

        def shows(seen):
            return b" 1 rank  " in seen

        def another_shows(_):
            """Whether its worker has begun, and another run, which began after that, has drawn its line."""
            if not os.path.exists(self.path("begun")):
                return False
            os.remove(self.path("begun"))
            return shows(self.shown(*worker, until=shows))

        for env, options, tty in (({"CI": "1"}, [], (1, 2)), ({"TERM": "dumb"}, [], (1, 2)), ({}, ["--quiet"], (1, 2)),
                                  ({}, ["--log-format", "json"], (1, 2)), ({}, [], (1,))):
            with self.subTest(env=env, options=options, tty=tty):
                if os.path.exists(self.path("begun")):
                    os.remove(self.path("begun"))
                self.assertNotIn(b" 1 rank", self.shown(*options, *worker, until=another_shows, tty=tty, **env))
        plain = self.shown(*worker, NO_COLOR="1", until=shows)
        self.assertRegex(plain.decode(), "\u25cf \\w+  1 rank  0:00:")


class Logs(WatchCase):
    def test_a_live_run_shows_what_its_workers_wrote_and_follows_until_its_end(self):
        gate = self.gate()
        job = self.start("--nproc-per-node", "2", "--rdzv-id", "job7",
                         *shell('echo "first $RANK"; echo "oops $RANK" >&2; ' + env_to() + PASS_GATE + 'echo "last $RANK"'))
        self.wait_for_workers(2, jobs=[job])
        wait_until(lambda: self.ctl("logs", "job7", code=None).stderr.count("oops") == 2, job.text)
        said = self.ctl("logs", "job7", 1)
        self.assertEqual((said.stdout, said.stderr), ("[1]: first 1\n", "[1]: oops 1\n"))
        self.assertIn("nothing is known", self.ctl("logs", "job7", 5, code=1).stderr)
        out = open(self.path("followed"), "wb")
        follower = subprocess.Popen([CTL, "logs", "job7", "--follow"], stdout=out, stderr=subprocess.DEVNULL,
                                    env=self.environment())
        self.addCleanup(lambda: (follower.kill(), follower.wait(), out.close()))

        def followed():
            with open(self.path("followed"), encoding="utf-8") as f:
                return sorted(f.read().splitlines())

        wait_until(lambda: len(followed()) == 2, followed)
        gate.open()
        self.assertEqual(follower.wait(PATIENCE), 0)
        self.assertEqual(followed(), ["[0]: first 0", "[0]: last 0", "[1]: first 1", "[1]: last 1"])
        job.wait()

    def test_it_is_bounded_and_says_what_went_by(self):
        self.run_ddprun(*shell("i=0; while [ $i -lt 5000 ]; do echo line number $i; i=$((i+1)); done"))
        lines = self.ctl("logs").stdout.splitlines()
        self.assertEqual(lines[-1], "[0]: line number 4999")
        self.assertLess(len("\n".join(lines)), 40_000)
        self.assertRegex(lines[0], r"^\[0\]: ")

    def test_of_a_long_line_the_beginning_and_the_end_are_kept(self):
        # Half a megabyte is kept of both streams of 20 workers together.
        self.run_ddprun("--nproc-per-node", "20", *shell("head -c 15000 /dev/zero | tr '\\0' x; echo end of $RANK"))
        said = self.ctl("logs").stdout.splitlines()
        self.assertEqual(len(said), 20)
        for rank in range(20):
            [line] = [line for line in said if line.startswith(f"[{rank}]: ")]
            self.assertRegex(line, rf"^\[{rank}\]: x{{1000,4000}} \.\.\. 150\d\d bytes \.\.\. x{{1000,4000}}end of {rank}$")

    def test_it_follows_an_agent_that_once_did_not_answer(self):
        with open("/proc/self/stat", encoding="ascii") as f:
            started = int(f.read().rsplit(")", 1)[1].split()[19])
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            boot = f.read().strip()
        self.run_ddprun(*shell("true"))
        [path] = self.records()
        with open(path, encoding="utf-8") as f:
            ended = json.load(f)
        record = {name: ended[name] for name in ("schema", "run_id", "command", "host", "started", "max_restarts")}
        record.update(launcher_pid=os.getpid(), launcher_started=started, boot=boot, folder=self.dir)

        def write(what):
            with open(path + ".new", "w", encoding="utf-8") as f:
                json.dump(what, f)
            os.rename(path + ".new", path)

        write(record)
        agent = socket.socket(socket.AF_UNIX)
        self.addCleanup(agent.close)
        agent.bind(self.path("node-0"))
        agent.listen()
        agent.settimeout(PATIENCE)
        follower = subprocess.Popen([CTL, "logs", "--follow"], stdout=subprocess.PIPE, text=True, env=self.environment())
        self.addCleanup(lambda: (follower.kill(), follower.wait(), follower.stdout.close()))
        for text in ("one", None, "two"):  # In between it has too many visitors.
            visitor, _ = agent.accept()
            with visitor:
                visitor.recv(4096)
                tail = {"rank": 0, "local_rank": 0, "stream": "stdout", "text": f"{text}\n", "end": 1, "missed": 0}
                if text is not None:
                    visitor.sendall(json.dumps({"tails": [tail]}).encode())
        agent.close()
        write({**ended, **record, "folder": "", "tails": []})
        self.assertEqual(follower.communicate(timeout=PATIENCE)[0], "[0]: one\n[0]: two\n")
        self.assertEqual(follower.returncode, 0)

    def test_nobody_else_can_ask_an_agent(self):
        job = self.start(*shell(env_to() + "exec sleep 600"))
        self.wait_for_workers(1, jobs=[job])
        folder = self.history()[0]["folder"]
        self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
        self.assertTrue(os.path.exists(folder + "/node-0"))


class Debug(WatchCase):
    """torch's own handlers are driven in tests/python/torch_watch_test.py."""

    # Where the agent told this worker to listen, which Python programs are not shown (python/startup).
    DOOR = """
import os, socket, sys, time
start = dict(entry.split(b"=", 1) for entry in open("/proc/self/environ", "rb").read().split(b"\\0") if b"=" in entry)
listener = socket.socket(socket.AF_UNIX)
if os.environ["LISTENS"] == "yes":
    listener.bind(start[b"DDPRUN_WATCH_SOCKET"]); listener.listen()
open(os.path.join(os.environ["DIR"], os.environ["RANK"]), "w").close()
while True:
    visitor = listener.accept()[0] if os.environ["LISTENS"] == "yes" else time.sleep(600)
    visitor.recv(64); visitor.sendall(os.environ["SAYS"].encode()); visitor.close()
"""

    def worker(self, *flags, listens="yes", says=""):
        """Its stand-in, which answers everybody what it was told to say."""
        with open(self.path("worker.py"), "w", encoding="utf-8") as file:
            file.write(self.DOOR)
        self.start("--rdzv-id", "job7", *flags, self.path("worker.py"),
                   env=self.environment(PYTHON_EXEC=sys.executable, LISTENS=listens, SAYS=says, DIR=self.dir))
        wait_until(lambda: os.path.exists(self.path("0")), "the worker to be there")

    def refusal(self, *argv):
        return self.ctl("debug", "job7", *argv, code=1).stderr

    def test_a_run_that_was_not_started_for_it_says_with_what_to_start_it(self):
        self.worker(listens="no")
        self.assertRegex(self.refusal(0), r"rank 0 \(pid \d+\) of run 'job7' cannot be queried: PyTorch's debug handlers are available in "
                                          r"runs with --on-stall log or --on-stall kill")
        self.assertIn("the run has 1 rank", self.refusal(1))

    def test_a_program_without_torch_does_not_listen(self):
        self.worker("--on-stall", "log", listens="no")
        self.assertIn("does not listen: it has not imported torch (yet)", self.refusal(0))

    def test_what_the_rank_says_is_quoted_and_garbage_is_no_answer(self):
        self.worker("--on-stall", "log", says='{"error": "torch 1.13 has \\u001b[2J no handlers"}')
        self.assertRegex(self.refusal(0, "ping"), r"of run 'job7': torch 1.13 has [^\x1b]*no handlers$")

    def test_garbage_is_no_answer(self):
        self.worker("--on-stall", "log", says="[" * 100)
        self.assertIn("its answer cannot be read", self.refusal(0))

    def test_a_server_that_has_gone_is_named(self):
        self.worker("--on-stall", "log", says=json.dumps({"socket": self.path("gone"), "handlers": ["ping", "a\x1b[2J"]}))
        self.assertEqual(self.ctl("debug", "job7", 0).stdout, "ping\na?[2J\n")
        self.assertIn("asked for ping: No such file or directory", self.refusal(0, "ping"))


class Stacks(WatchCase):
    def stuck_rank(self):
        gate = self.gate()
        job = self.start("--nproc-per-node", "2", "--rdzv-id", "job7", *shell(env_to() + PASS_GATE))
        workers = self.wait_for_workers(2, jobs=[job])
        self.assertEqual(len(workers), 2)
        return gate

    def test_without_a_debugger_it_says_so_and_what_the_kernel_knows(self):
        self.stuck_rank()
        os.mkdir(self.path("empty"))
        said = self.ctl("stacks", "job7", 1, PATH=self.path("empty")).stdout
        self.assertRegex(said, r"^rank 1 is pid \d+: /bin/sh -c ")
        self.assertIn("no native stacks: there is no gdb; there is no eu-stack\nwhat the kernel reports:\nthread ", said)
        self.assertRegex(said, r"thread \d+ \(sh\), state S")
        self.assertIn("the run has 2 ranks", self.ctl("stacks", "job7", 2, code=1).stderr)

    @unittest.skipUnless(shutil.which("gdb"), "there is no gdb")
    @unittest.skipIf(ddprun_case.is_sanitized(), "gdb takes long where sanitizers are")
    def test_with_gdb_it_shows_each_thread_and_the_worker_goes_on(self):
        gate = self.stuck_rank()
        said = self.ctl("stacks", "job7", 0, code=0).stdout
        if "by gdb" not in said:
            self.assertIn("gdb: ", said)
            self.skipTest("gdb may not attach here: " + said)
        self.assertRegex(said, r"native stacks, by gdb:\n(.*\n)*#0 ")
        gate.open()
        self.assertEqual(self.jobs[0].wait(), 0)


if __name__ == "__main__":
    main()
