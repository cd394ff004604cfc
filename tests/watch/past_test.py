"""Runs that have ended: what a daemon with --state-dir remembers of them, and their reports."""

import json
import os
import re
import signal

import watch_test
from watch_test import BIN, PLANTED, WatchCase, free_port, main, shell, wait_until

TOKEN = {"DDPRUN_TOKEN": "a token of the tests"}
SCRIPT = 'echo "step of $RANK"; [ "$RANK" = 1 ] && { echo "loss is NaN" >&2; exit 7; }; exec sleep 600'


def account_of(page):
    """What the page of a report holds."""
    return json.loads(re.search(r'<script[^>]*application/json[^>]*>(.*?)</script>', page, re.S).group(1))


class DaemonCase(WatchCase):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.there = ("-e", f"127.0.0.1:{self.port}")

    def daemon(self, *argv):
        daemon = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--port", str(self.port), *argv], env=TOKEN)
        wait_until(lambda: self.ctl("status", *self.there, code=None, **TOKEN).returncode == 0, daemon.text)
        return daemon

    def run_of(self, run_id, *worker, code=0, nodes=1, env=None):
        jobs = [self.start("--rdzv-id", run_id, "--nnodes", str(nodes), "--nproc-per-node", "2",
                           "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-conf", "is_host=0", *worker,
                           env={**TOKEN, **(env or {})}) for _ in range(nodes)]
        for job in jobs:
            self.finish(job, code)

    def past(self, *argv):
        return json.loads(self.ctl("history", *argv, *self.there, "--json", **TOKEN).stdout)["runs"]

    def wait_for_past(self, count):
        """The launchers hear the verdict before the daemon has heard of the last node's end."""
        wait_until(lambda: len(self.past()) == count, self.past)
        return self.past()


class OfDaemon(DaemonCase):
    def test_a_failed_run_is_remembered_with_all_that_led_to_its_end_beyond_the_daemons_death(self):
        daemon = self.daemon("--state-dir", self.path("of-daemon"))
        self.assertIn("has no record of an ended run", self.ctl("history", *self.there, **TOKEN).stdout)
        self.run_of("job9", *shell(SCRIPT), code=7, nodes=2)
        [run] = self.wait_for_past(1)
        self.assertEqual((run["run_id"], run["state"], run["exit_code"], run["world_size"], run["nodes"]),
                         ("job9", "ended", 7, 4, 2))
        self.assertRegex(run["command"], r"^ddprun --nnodes 2 .*--rdzv-id job9 ")
        self.assertEqual(run["verdict"]["first_cause"]["last_words"], "loss is NaN")
        self.assertIn("parts_s", run["verdict"]["ledger"])
        self.assertNotIn("account", run)
        [whole] = self.past("job9")
        self.assertTrue(any("joined" in event["text"] for event in whole["events"]), whole)
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        self.daemon("--state-dir", self.path("of-daemon"))
        self.assertEqual(self.past("job9"), [whole])
        table = self.ctl("history", *self.there, **TOKEN).stdout
        self.assertRegex(table, r"(?m)^\S +1 +job9 +(today|yesterday) \d\d:\d\d +.* 4 +0 of 0 +.*rank 1 on .*: loss is NaN$")
        text = self.ctl("history", "1", *self.there, **TOKEN).stdout
        self.assertIn("command   ddprun --nnodes 2 ", text)
        self.assertIn("what happened, since its start", text)
        self.assertNotIn("ddprunctl logs", text)
        page = self.path("job9.html")
        self.assertEqual(self.ctl("report", "job9", *self.there, "--html", page, **TOKEN).stdout, f"the report is in {page}\n")
        with open(page, encoding="utf-8") as f:
            account = account_of(f.read())
        self.assertEqual(account["run"]["command"], whole["command"])
        self.assertRegex(account["run"]["started_utc"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual(account["verdict"]["first_cause"]["rank"], 1)
        for slot in account["slots"]:
            self.assertAlmostEqual(sum(slot["parts_s"].values()), account["run"]["wall_s"], delta=0.1)

    def test_it_is_bounded_for_its_user_only_and_half_a_record_is_none(self):
        folder = self.path("of-daemon")
        daemon = self.daemon("--state-dir", folder)
        self.run_of("job9", *shell("true"))
        self.wait_for_past(1)
        folder = os.path.join(folder, "history")
        [name] = os.listdir(folder)
        self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
        self.assertEqual(os.stat(os.path.join(folder, name)).st_mode & 0o777, 0o600)
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            text = f.read()
        for number in range(120):
            path = os.path.join(folder, f"20200101T000{number:03}Z-0.json")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text if number % 2 else text[:len(text) // 2])
            os.utime(path, (number, number))
        daemon.signal(signal.SIGTERM)
        daemon.wait()
        self.daemon("--state-dir", os.path.dirname(folder))
        self.assertEqual(len(self.past()), 61)
        self.run_of("job10", *shell("true"))
        wait_until(lambda: len(os.listdir(folder)) == 100, lambda: os.listdir(folder))
        self.assertEqual(self.past()[0]["run_id"], "job10")

    def test_a_run_id_that_is_used_again_is_two_records(self):
        self.daemon("--state-dir", self.path("of-daemon"))
        self.run_of("job9", *shell("true"))
        self.wait_for_past(1)
        self.run_of("job9", *shell("exit 3"), code=3)
        self.assertEqual([run["exit_code"] for run in self.wait_for_past(2)], [3, 0])
        self.assertEqual([run["exit_code"] for run in self.past("job9")], [3])

    def test_a_user_who_keeps_no_history_keeps_the_command_back(self):
        self.daemon("--state-dir", self.path("of-daemon"))
        self.run_of("job9", *shell("true secret"), env={"DDPRUN_HISTORY": "0"})
        self.assertEqual(self.wait_for_past(1)[0]["command"], "")

    def test_without_a_folder_nothing_is_kept_and_it_says_so(self):
        self.daemon()
        self.assertIn("--state-dir", self.ctl("history", *self.there, code=1, **TOKEN).stderr)
        self.assertIn("token", self.ctl("history", *self.there, code=1, DDPRUN_TOKEN="other").stderr)


class OfThisMachine(WatchCase):
    def test_the_report_of_a_past_run_is_made_from_its_record(self):
        self.run_ddprun("--nproc-per-node", "2", "--rdzv-id", "job7", PLANTED, "steps=20", "forward=5")
        page = self.path("job7.html")
        self.assertEqual(self.ctl("report", "job7", "--html", page).stdout, f"the report is in {page}\n")
        with open(page, encoding="utf-8") as f:
            account = account_of(f.read())
        self.assertEqual(account["run"]["id"], "job7")
        self.assertEqual(account["run"]["steps"], 20)
        self.assertRegex(account["run"]["command"], r"^ddprun --nproc-per-node 2 .*--rdzv-id job7 ")
        self.assertEqual(json.loads(self.ctl("report", "1").stdout)["slots"], account["slots"])
        self.assertIn("ddprunctl report job7", self.ctl("history", "job7").stdout)

    def test_what_a_past_run_would_have_been(self):
        self.run_ddprun("--nproc-per-node", "2", "--rdzv-id", "job7", PLANTED, "steps=20", "forward=5")
        said = self.ctl("whatif", "job7", "--mtbf", "6h", "--for", "3d", "--spare-nodes", "0,1", "--checkpoint", "auto").stdout
        self.assertRegex(said, r"^run job7: 2 ranks on 1 node, .*, 0 failures, goodput [\d.]+ % \(by this model [\d.]+ %\)\n")
        self.assertRegex(said, r"a failure each +6 h +given\n")
        self.assertRegex(said, r"another node is there in +30 min +assumed: --repair sets it\n")
        self.assertRegex(said, r"One spare node would save [^\n]+ of 7\d h")
        self.assertRegex(said, r"The best interval of checkpoints is [^(]+ \(Young and Daly: ")
        report = self.path("job7.json")
        with open(report, "w", encoding="utf-8") as f:
            f.write(self.ctl("report", "job7").stdout)
        same = self.ctl("whatif", "--from", report, "--mtbf", "6h", "--for", "3d", "--spare-nodes", "0,1", "--checkpoint", "auto")
        self.assertEqual(same.stdout, said)
        found = json.loads(self.ctl("whatif", "--from", report, "--nodes", "2,1:4", "--json").stdout)
        self.assertEqual((found["schema"], found["run"], len(found["answers"])), ("ddprun.whatif/1", "job7", 2))
        self.assertEqual(found["facts"]["node_mtbf_s"]["source"], "assumed")
        self.assertIn("keep their processes", self.ctl("whatif", "job7", "--spares", "1", code=2).stderr)
        self.assertIn("is no account", self.ctl("whatif", "--from", __file__, code=1).stderr)
        self.assertIn("cannot be opened", self.ctl("whatif", "--from", self.path("none"), code=1).stderr)
        self.assertIn("no run 'job8'", self.ctl("whatif", "job8", code=1).stderr)

    def test_an_interrupted_run_of_several_nodes_has_one_too(self):
        page = self.path("page.html")
        job = self.start("--local-nodes", "2", "--nproc-per-node", "2", "--rdzv-id", "job8", "--report-html", page,
                         *shell(watch_test.env_to() + "exec sleep 600"))
        self.wait_for_workers(4, jobs=[job])
        job.signal(signal.SIGTERM)
        self.finish(job, 143)
        self.assertIn(f"the report is in {page}", job.err())
        account = json.loads(self.ctl("report", "job8").stdout)
        self.assertEqual(account["run"]["id"], "job8")
        self.assertGreaterEqual(len(account["slots"]), 2)  # The other node's come with a beat.
        with open(page, encoding="utf-8") as f:
            self.assertEqual(account_of(f.read())["slots"], account["slots"])

    def test_without_a_record_it_says_why_and_asks_the_daemon_if_there_may_be_one(self):
        self.assertIn("there are no records of your runs", self.ctl("report", "job7", code=1).stderr)
        said = self.ctl("report", "job7", code=1, DDPRUN_ENDPOINT=f"127.0.0.1:{free_port()}", **TOKEN).stderr
        self.assertIn("there are no records of your runs", said)
        self.assertIn("nothing listens", said)
        job = self.start(*shell(watch_test.env_to() + "exec sleep 600"))
        self.wait_for_workers(1, jobs=[job])
        self.assertIn("is in progress", self.ctl("report", "1", code=1).stderr)


if __name__ == "__main__":
    main()
