"""The ledger of runs whose time is planted, and the page made of it: tests/process/worker_sdk/planted_worker.cc."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from ddprun_case import BIN, DdprunCase, PASS_GATE, PATIENCE, env_to, free_port, main, shell, wait_until

PLANTED = os.path.join(os.path.dirname(BIN), "tests", "planted_worker")
SLACK = 0.03  # Seconds: a start is known to a hundredth, and clocks are read in turn. No test says how much more it may be.
KEPT = ("outside", "forward", "backward", "transfer", "waiting", "steps")


def data_of(page):
    """The account in a page, as a browser would find it."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found.group(1))


class LedgerCase(DdprunCase):
    def run_planted(self, *planted, launch=("--nproc-per-node", "2"), code=0, program=PLANTED):
        path = os.path.join(self.dir, "report.html")
        self.job = self.run_ddprun(*launch, "--report-html", path, program, *planted, code=code)
        with open(path, encoding="utf-8") as f:
            self.page = f.read()
        account = data_of(self.page)
        for slot in account["slots"]:
            self.assertAlmostEqual(sum(slot["parts_s"].values()), account["run"]["wall_s"], delta=0.06, msg=slot)
        return account

    def part(self, account, name):
        return [slot["parts_s"].get(name, 0) for slot in account["slots"]]


class Planted(LedgerCase):
    def test_each_part_has_at_least_what_was_planted_in_it_and_all_add_up(self):
        account = self.run_planted("startup=400", "steps=20", "outside=10", "forward=30", "backward=20")
        for name, planted in (("startup", 0.4), ("outside", 0.2), ("forward", 0.6), ("backward", 0.4)):
            for seconds in self.part(account, name):
                self.assertGreaterEqual(seconds, planted - SLACK, name)
        self.assertEqual(self.part(account, "lost"), [0, 0])
        self.assertEqual(account["run"]["steps"], 20)
        self.assertEqual(account["verdict"]["kind"], "success")

    def test_a_late_rank_is_named_and_the_others_wait_for_it(self):
        account = self.run_planted("steps=24", "forward=5", "late=1:150")  # Far more than other load costs.
        waiting = self.part(account, "waiting")
        self.assertGreater(waiting[0], 3 * waiting[1])
        self.assertGreater(waiting[0], 2)
        self.assertGreater(account["slots"][1]["late_steps"], 8)
        self.assertIn("rank 1", account["findings"]["help"][0]["text"])

    def test_a_kill_loses_the_work_since_the_last_checkpoint_and_the_restart_is_counted(self):
        state = os.path.join(self.dir, "state")
        account = self.run_planted("startup=200", "steps=20", "forward=50", "save=8:150", "fail=1:14", f"state={state}",
                                   launch=("--nproc-per-node", "2", "--max-restarts", "1"))
        for seconds in self.part(account, "checkpoint"):
            self.assertGreaterEqual(seconds, 2 * 0.15 - SLACK)  # One before the death, one after.
        for seconds in self.part(account, "lost"):
            self.assertGreaterEqual(seconds, 6 * 0.05 - SLACK)
        for seconds in self.part(account, "restart"):
            self.assertGreaterEqual(seconds, 0.2 - SLACK)  # The start-up of the second start.
        for seconds in self.part(account, "forward"):
            self.assertGreaterEqual(seconds, 20 * 0.05 - SLACK)
        incident = account["incidents"][0]
        self.assertEqual((incident["kind"], incident["who"]), ("worker_failed", "rank 1"))
        self.assertGreaterEqual(incident["lost_s"], 0.3 - SLACK)
        self.assertGreaterEqual(incident["back_s"], 0.2 - SLACK)
        self.assertIn("1 incident cost", account["findings"]["incidents"])

    def test_without_a_checkpoint_a_failed_run_has_kept_nothing(self):
        account = self.run_planted("steps=20", "forward=20", "fail=0:10", code=137)
        self.assertEqual([sum(slot["parts_s"].get(k, 0) for k in KEPT) for slot in account["slots"]], [0, 0])
        self.assertEqual(account["verdict"]["first_cause"]["rank"], 0)

    def test_the_verdict_has_the_sums_and_report_ends_with_them(self):
        verdict = os.path.join(self.dir, "verdict.json")
        job = self.run_ddprun("--nproc-per-node", "2", "--report", "--error-file", verdict, PLANTED, "steps=20",
                              "forward=20", "fail=0:10", code=137)
        with open(verdict, encoding="utf-8") as f:
            ledger = json.load(f)["ledger"]
        self.assertEqual(ledger["places"], 2)
        self.assertAlmostEqual(sum(ledger["parts_s"].values()), 2 * ledger["wall_s"], places=4)
        self.assertGreater(ledger["parts_s"]["lost"], 2 * (10 * 0.02 - SLACK))
        self.assertRegex(job.out(), r"goodput 0\.0 % of [0-9.]+ rank-s")
        self.assertRegex(job.out(), r"  lost work +[0-9.]+ % ")

    def test_starts_are_shown_in_their_parts(self):
        account = self.run_planted("startup=300", "steps=6", "fail=0:3", "save=2:10", f"state={self.path('state')}",
                                   launch=("--nproc-per-node", "2", "--max-restarts", "1", "--report"))
        for slot in account["slots"]:
            self.assertEqual([start["preloaded"] for start in slot["starts"]], [False, False])
            for start in slot["starts"]:
                self.assertEqual(set(start), {"preloaded", "spawn_s", "imports_s", "rendezvous_s", "first_step_s"})
                self.assertGreaterEqual(start["imports_s"], 0.3 - SLACK)
        self.assertRegex(self.job.out(), r"starts of 4 processes, cold, on average: spawn .*, imports .*, rendezvous .*, until the "
                                         r"first step ")

    def test_the_sums_of_starts_are_in_the_verdict(self):
        verdict = self.path("verdict.json")
        self.run_ddprun("--nproc-per-node", "2", "--error-file", verdict, PLANTED, "startup=300", "steps=3", "fail=0:1", code=137)
        with open(verdict, encoding="utf-8") as f:
            starts = json.load(f)["ledger"]["starts"]
        self.assertEqual(starts["preloaded"], {"processes": 0})
        self.assertEqual(starts["cold"]["processes"], 2)
        self.assertGreaterEqual(starts["cold"]["imports_s"], 0.3 - SLACK)

    def test_a_run_that_is_interrupted_has_an_account_too(self):
        path = self.path("report.html")
        job = self.start("--nproc-per-node", "2", "--report-html", path, *shell(env_to() + PASS_GATE))
        self.gate()
        self.wait_for_workers(2, jobs=[job])
        job.signal(signal.SIGTERM)
        self.finish(job, 128 + signal.SIGTERM)
        with open(path, encoding="utf-8") as f:
            account = data_of(f.read())
        self.assertEqual(account["verdict"]["kind"], "interrupted")
        self.assertGreater(min(self.part(account, "unknown")), 0)

    def test_nodes_of_a_hosted_run_are_in_one_account(self):
        account = self.run_planted("steps=16", "forward=10", launch=("--local-nodes", "2", "--nproc-per-node", "2"))
        self.assertEqual(len(account["hosts"]), 2)
        self.assertEqual(sorted(slot["rank"] for slot in account["slots"]), [0, 1, 2, 3])
        self.assertGreaterEqual(min(self.part(account, "forward")), 16 * 0.01 - SLACK)

    def test_what_reports_nothing_is_unknown_time(self):
        account = self.run_planted("-c", "sleep 3", program="bash")  # Longer than even a slow start.
        self.assertGreaterEqual(min(self.part(account, "unknown")), 3 - SLACK)
        self.assertIn("do not use ddprun's SDK", account["findings"]["ribbon"])


class Page(LedgerCase):
    HOSTILE = "</script><script>document.title='owned'</script><!--<script>&amp;\u2028"

    def hostile_account(self):
        return self.run_planted("-c", f"echo \"ValueError: {self.HOSTILE}\" >&2; exit 3", program="bash", code=3)

    def test_no_word_of_a_worker_becomes_markup(self):
        account = self.hostile_account()
        self.assertIn("</script><script>", "".join(account["verdict"]["last_words"]))
        self.assertEqual(self.page.count("<script"), 2)
        self.assertEqual(self.page.count("</script>"), 2)
        self.assertNotIn("owned", re.sub(r'id="data">.*?</script>', "", self.page, flags=re.DOTALL))

    def test_it_needs_nothing_but_itself(self):
        self.run_planted("steps=4")
        outside = re.sub(r'id="data">.*?</script>', "", self.page, flags=re.DOTALL)
        self.assertEqual(re.findall(r"https?://|src=|@import|url\(", outside), [])
        self.assertIn("default-src 'none'", outside)

    def test_its_script_is_one(self):
        node = shutil.which("node")
        if not node:
            self.skipTest("no node")
        self.run_planted("steps=4")
        script = os.path.join(self.dir, "page.js")
        with open(script, "w", encoding="utf-8") as f:
            f.write(re.findall(r"<script>(.*?)</script>", self.page, re.DOTALL)[0])
        subprocess.run([node, "--check", script], check=True, timeout=60)

    def test_it_opens_from_disk_in_a_browser(self):
        browser = shutil.which("chromium")
        if not browser:
            self.skipTest("no chromium")
        self.hostile_account()
        page = os.path.join(self.dir, "report.html")
        shown = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--enable-logging=stderr",
                                f"--user-data-dir={self.dir}/profile", f"file://{page}#dark"],
                               capture_output=True, text=True, timeout=120, check=True)
        self.assertNotIn("CONSOLE", shown.stderr)
        self.assertIn("failed first", shown.stdout)
        self.assertIn("ddprun report: ", shown.stdout)
        self.assertNotIn("<title>owned", shown.stdout)

    def test_a_page_that_cannot_be_written_is_refused_before_the_start(self):
        job = self.run_ddprun("--report-html", "/nowhere/report.html", "/bin/true", code=1)
        self.assertIn("--report-html /nowhere/report.html cannot be written", job.err())


class Live(LedgerCase):
    """The daemon's page, and the account of a run that goes on."""

    TOKEN = "a token that no page may show"

    def setUp(self):
        super().setUp()
        self.port, self.http_port, self.env = free_port(), free_port(), {"DDPRUN_TOKEN": self.TOKEN}

    def daemon(self, *argv):
        job = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--port", str(self.port), "--http-port",
                                  str(self.http_port), *argv], env=self.env)
        job.wait_for("pages for operators")
        return job

    def run_of_one(self, *worker):
        return self.start("--nnodes", "1", "--nproc-per-node", "2", "--rdzv-id", "job7", "--rdzv-endpoint",
                          f"127.0.0.1:{self.port}", "--rdzv-conf", "is_host=0", *worker, env=self.env)

    def get(self, target):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{target}", timeout=PATIENCE) as reply:
            return reply.read().decode(), reply.headers

    def status(self, target):
        try:
            self.get(target)
            return 200
        except urllib.error.HTTPError as error:
            return error.code

    def test_pages_of_a_run_that_goes_on_and_of_one_that_has_ended(self):
        self.daemon()
        gate = self.gate()
        job = self.run_of_one(*shell(env_to() + PASS_GATE))
        wait_until(lambda: '"running"' in self.get("/status")[0], "a run")
        wait_until(lambda: "goodput" in json.loads(self.get("/status")[0])["runs"][0], "a report of the node")
        page, headers = self.get("/")
        self.assertIn("script-src 'sha256-", headers["Content-Security-Policy"])
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertNotIn(self.TOKEN, page)
        events = json.loads(self.get("/events")[0])
        self.assertIn("a node joined", [event["text"] for event in events])
        self.assertEqual(json.loads(self.get(f"/events?after={events[-1]['number']}")[0]), [])
        self.assertNotIn("verdict", json.loads(self.get("/report?run=job7")[0]))
        gate.open()
        self.finish(job)
        self.assertEqual(json.loads(self.get("/report?run=job7")[0])["verdict"]["kind"], "success")
        metrics = self.get("/metrics")[0]
        self.assertRegex(metrics, r'ddprun_rank_seconds{part="unknown",run="job7"} [0-9.]+')
        self.assertRegex(metrics, r'ddprun_goodput_ratio{run="job7"} 0\n')
        html = self.path("job7.html")
        asked = subprocess.run([os.path.join(BIN, "ddprunctl"), "-e", f"127.0.0.1:{self.port}", "report", "job7", "--html", html],
                               env={**os.environ, **self.env}, capture_output=True, text=True, timeout=PATIENCE, check=True)
        self.assertIn("the report is in", asked.stdout)
        with open(html, encoding="utf-8") as f:
            self.assertEqual(data_of(f.read())["run"]["id"], "job7")

    def test_where_others_reach_the_port_the_page_wants_its_key(self):
        daemon = self.daemon("--http-address", "0.0.0.0")
        key = re.search(r"/\?key=([0-9a-f]{32})", daemon.err()).group(1)
        self.assertNotIn(self.TOKEN, daemon.err())
        for target in ("/", "/events", "/report?run=x"):
            self.assertEqual(self.status(target), 403, target)
        self.assertEqual(self.status("/?key=" + "0" * 32), 403)
        self.assertEqual(self.status(f"/?key={key}"), 200)
        self.assertEqual(self.status("/healthz"), 200)

    def test_a_browser_shows_it_and_its_policy_lets_it_run(self):
        browser = shutil.which("chromium")
        if not browser:
            self.skipTest("no chromium")
        self.daemon()
        gate = self.gate()
        job = self.run_of_one(*shell(env_to() + PASS_GATE))
        wait_until(lambda: '"running"' in self.get("/status")[0], "a run")
        shown = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--enable-logging=stderr",
                                f"--user-data-dir={self.dir}/profile", "--virtual-time-budget=6000",
                                f"http://127.0.0.1:{self.http_port}/"],
                               capture_output=True, text=True, timeout=120, check=True)
        self.assertNotIn("CONSOLE", shown.stderr)
        self.assertIn("<h1>job7</h1>", shown.stdout)
        gate.open()
        self.finish(job)


if __name__ == "__main__":
    main()
