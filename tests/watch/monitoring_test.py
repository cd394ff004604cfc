"""The dashboard and the alerts of deploy/monitoring name only what the daemon tells, and Prometheus, where it is installed, can
read the rules and scrapes a daemon with a run."""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from ddprun_case import BIN, DdprunCase, PATIENCE, free_port, main, wait_until

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FOLDER = os.path.join(ROOT, "deploy", "monitoring")
PLANTED = os.path.join(os.path.dirname(BIN), "tests", "planted_worker")
METRIC = re.compile(r"\b(?:ddprun|process)_[a-z_]+\b")
LABELS = re.compile(r'(\w+)(?:=~|!~|!=|=)"')


def text_of(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
        return f.read()


def expressions():
    """[(where, PromQL)] of the dashboard and the alerts."""
    board = json.loads(text_of("ddprun-dashboard.json"))
    found = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel["targets"]]
    found += [("variable", item["query"]["query"]) for item in board["templating"]["list"] if item["type"] == "query"]
    rules = re.findall(r"- alert: (\w+)\n +expr: (?:>-\n)?((?:.*\n)+?) +(?:for|labels):", text_of("ddprun-alerts.yml"))
    assert len(rules) == text_of("ddprun-alerts.yml").count("- alert:")
    return found + rules


class Monitoring(DdprunCase):
    def served(self):
        """The address of a daemon's pages; a run with steps is at it."""
        port, pages = free_port(), free_port()
        env = {"DDPRUN_TOKEN": "a token of the tests"}
        self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--port", str(port), "--http-port", str(pages)], env=env)
        self.start("--rdzv-id", "job7", "--nproc-per-node", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "is_host=0",
                   "--nnodes", "1", PLANTED, "steps=100000000", "forward=5", "late=1:20", env=env)
        url = f"http://127.0.0.1:{pages}/metrics"

        def has_steps():
            try:
                return "ddprun_sync_late_seconds_total{" in urllib.request.urlopen(url, timeout=PATIENCE).read().decode()
            except OSError:
                return False

        wait_until(has_steps, lambda: "".join(job.text() for job in self.jobs))
        return url

    def test_each_name_and_label_is_one_that_the_daemon_tells(self):
        told = urllib.request.urlopen(self.served(), timeout=PATIENCE).read().decode()
        names = set(re.findall(r"(?m)^# TYPE (\w+) ", told))
        labels = set(re.findall(r'[{,](\w+)="', told)) | {"job", "instance"}
        self.assertGreater(len(names), 20)
        for where, expression in expressions():
            with self.subTest(where=where):
                used = METRIC.findall(expression)
                for name in used:
                    self.assertIn(re.sub(r"_(bucket|sum|count)$", "", name), names)
                self.assertTrue(used or "up{" in expression)
                self.assertEqual(set(LABELS.findall(expression)) - labels, set())
                for grouped in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
                    self.assertEqual(set(re.split(r",\s*", grouped)) - labels, set())

    @unittest.skipUnless(shutil.which("promtool"), "there is no promtool (package prometheus)")
    def test_promtool_accepts_the_rules_and_their_tests(self):
        for command in (["check", "rules", "ddprun-alerts.yml"], ["test", "rules", "ddprun-alerts-test.yml"],
                        ["check", "config", "prometheus.yml"]):
            done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, timeout=PATIENCE, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(shutil.which("prometheus"), "there is no prometheus")
    def test_prometheus_scrapes_a_run_and_answers_every_expression(self):
        target = urllib.parse.urlparse(self.served()).netloc
        port = free_port()
        with open(self.path("prometheus.yml"), "w", encoding="ascii") as f:
            f.write("global: {scrape_interval: 1s}\n"
                    f"rule_files: [{os.path.join(FOLDER, 'ddprun-alerts.yml')}]\n"
                    f"scrape_configs: [{{job_name: ddprun, static_configs: [{{targets: ['{target}']}}]}}]\n")
        server = self.start_program(["prometheus", "--config.file", self.path("prometheus.yml"), "--storage.tsdb.path",
                                     self.path("data"), "--web.listen-address", f"127.0.0.1:{port}"])

        def query(expression):
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
            try:
                return json.load(urllib.request.urlopen(url, timeout=PATIENCE))["data"]["result"]
            except urllib.error.HTTPError as refused:
                if refused.code == 503:  # It still starts.
                    return []
                raise AssertionError(f"{expression}: {refused.read()}") from refused
            except OSError:  # It still starts.
                return []

        wait_until(lambda: query('ddprun_goodput_ratio{run="job7"}'), server.text)
        for where, expression in expressions():
            if where != "variable":
                with self.subTest(where=where):
                    query(expression.replace("$run", "job7"))  # What is no expression raises.
        server.signal(15)
        server.wait()


if __name__ == "__main__":
    main()
