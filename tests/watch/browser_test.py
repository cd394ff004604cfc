"""The report and the live page in a real browser: mouse, keyboard, zoom, narrow windows, both themes, and no complaint in the console.
With DDPRUN_AXE=.../axe.min.js (it is in axe-core-python and axe-playwright-python) its rules of accessibility are asked, too."""

import json
import os
import shutil
import urllib.request

import watch_test
from browser import NARROW, WIDE, Browser
from ddprun_case import PASS_GATE, skip_all, wait_until
from watch_test import BIN, PLANTED, WatchCase, env_to, free_port, main, shell

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
AXE = os.environ.get("DDPRUN_AXE", "")
# What axe cannot judge, or what is a matter of taste, of a single page.
AXE_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


class PageCase(WatchCase):
    def setUp(self):
        super().setUp()
        self.browser = Browser(self.dir)
        self.addCleanup(self.browser.close)

    def assert_fine(self, tab):
        self.assertEqual(tab.complaints(), [])
        self.assertEqual(tab.spills(), [])
        self.assertEqual(tab.value(NAMELESS), [])
        self.assertEqual(tab.value(PALE), [])
        if not AXE:
            return
        with open(AXE, encoding="utf-8") as f:
            tab.value(f.read() + ";0")
        found = json.loads(tab.value(f"axe.run(document, {json.dumps(AXE_RULES)}).then(r => JSON.stringify(r.violations.map(v => "
                                     "[v.id, v.help, v.nodes.map(n => n.html.slice(0, 200) + ' ' + n.failureSummary)])))"))
        self.assertEqual(found, [])


# What can be reached by Tab and has no name, or is a figure without one.
NAMELESS = """[...document.querySelectorAll('a[href],button,[tabindex],[role=img],canvas')].filter(e => !e.hidden && e.offsetWidth &&
    !(e.getAttribute('aria-label') || e.textContent.trim() || e.title)).map(e => e.outerHTML.slice(0, 200))"""

# Text of less contrast than 4.5 to the ground that it stands on, by the formula of WCAG.
PALE = """(() => {
  const rgb = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const bright = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b };
  const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c } return rgb(getComputedStyle(document.body).backgroundColor) };
  const pale = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.offsetWidth || e.closest('.vh,script')) continue;
    const a = bright(rgb(getComputedStyle(e).color)), b = bright(ground(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) pale.push(ratio.toFixed(2) + ' ' + e.outerHTML.slice(0, 120));
  }
  return pale })()"""


class Account(PageCase):
    """The page around accounts that are written here: what it draws and claims of them."""

    def page(self, verdict, parts, spans, bins=None):
        places = [{"node": 0, "host": "a", "local_rank": i, "rank": i, "steps": 60, "parts_s": parts,
                   **({"bins": bins} if bins else {})} for i in (0, 1)]
        account = {"schema": "ddprun.report/1", "verdict": verdict, "incidents": [], "hosts": ["a"], "slots": places,
                   "run": {"id": "job7", "wall_s": 10.0, "world_size": 2, "nodes": 1, "restarts": 0, "max_restarts": 0, "rounds": 1,
                           "steps": 60},
                   "spans": [{"from_s": a, "to_s": b, "part": part, "slots": [[0, 1]]} for a, b, part in spans],
                   "findings": {"incidents": "No worker failed, and no node was lost.", "ribbon": "x", "help": []}}
        with open(os.path.join(ROOT, "launcher", "page", "report.html"), encoding="utf-8") as f:
            text = f.read().replace("@DATA@", json.dumps(account))
        path = self.path("page.html")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return self.browser.open("file://" + path)

    def test_steps_that_are_not_taken_apart_are_no_waiting(self):
        for bins in (["A" * 200] * 4, ["." * 200] * 4, None):
            tab = self.page({"kind": "success"}, {"startup": 1.0, "steps": 8.0, "end": 1.0},
                            [(0, 1, "startup"), (9, 10, "end")], bins)
            waiting, steps = tab.value("[4, 5].map(k => D.slots[0].d[Math.floor(D.bins / 2) * 6 + k])")
            self.assertEqual((waiting, steps), (0, 1), bins)
            self.assert_fine(tab)

    def test_what_is_not_waiting_for_sure_is_shared_as_in_the_sums(self):
        tab = self.page({"kind": "success"}, {"steps": 6.0, "waiting": 2.0, "forward": 2.0}, [], ["A" * 200] * 4)
        self.assertEqual(tab.value("[4, 5].map(k => D.slots[0].d[k])"), [.25, .75])

    def test_a_run_that_was_stopped_has_not_failed(self):
        tab = self.page({"kind": "interrupted", "exit_code": 130, "text": "a left: interrupted by SIGINT"},
                        {"startup": .5, "lost": 9.5}, [(0, .5, "startup"), (.5, 10, "lost")])
        self.assertEqual(tab.value("document.querySelector('h1').textContent"), "!job7 was stopped after 10.0 s")
        text = tab.value("document.querySelector('#app').innerText")
        self.assertIn("If you stopped it on purpose, nothing is wrong.", text)
        self.assertNotIn("undone by failures", text)
        self.assertEqual(tab.value("pct(D.good)"), "95.0 %")
        self.assert_fine(tab)

    def test_what_no_rank_reported_is_not_zero(self):
        tab = self.page({"kind": "success"}, {"unknown": 10.0}, [(0, 10, "unknown")])
        self.assertEqual(tab.value("[...document.querySelectorAll('.kpis dt')].map(e => e.textContent).includes('Lost work')"), False)
        self.assertIn("no rank reported steps", tab.value("document.querySelector('.kpis').textContent"))
        self.assertTrue(tab.value("HATCHED.has('unknown') && C2.unknown !== C2.bg"))
        self.assert_fine(tab)


class Report(PageCase):
    def report(self, *planted, launch=("--local-nodes", "2", "--nproc-per-node", "2"), code=0, program=PLANTED):
        path = self.path("report.html")
        self.run_ddprun(*launch, "--report-html", path, program, *planted, code=code)
        return "file://" + path

    def restarted(self):
        return self.report("steps=24", "forward=10", "fail=3:12", f"state={self.path('steps')}",
                           launch=("--local-nodes", "2", "--nproc-per-node", "2", "--max-restarts", "1"))

    def test_it_opens_from_disk_fits_wide_and_narrow_windows_and_is_readable_in_both_themes(self):
        url = self.restarted()
        for size in (WIDE, NARROW):
            for dark in (False, True):
                with self.subTest(size=size, dark=dark):
                    tab = self.browser.open(url, size, dark)
                    self.assertIn("finished after", tab.value("document.querySelector('h1').textContent"))
                    self.assertEqual([one for one in tab.fetched() if not one.startswith(("file:", "data:"))], [])
                    self.assert_fine(tab)

    def test_a_failed_run_of_a_program_without_the_sdk_does_too(self):
        url = self.report("-c", "echo '" + "a very long word".replace(" ", "") * 40 + "' >&2; exit 3", program="bash", code=3)
        for size in (WIDE, NARROW):
            tab = self.browser.open(url, size)
            self.assertIn("failed first", tab.value("document.querySelector('h1').textContent"))
            self.assert_fine(tab)

    def test_mouse_opens_nodes_zooms_and_shows_an_incident(self):
        tab = self.browser.open(self.restarted())
        wall = tab.value("D.run.wall_s")
        left, top, width, height = tab.box("#fold")
        tab.click(left + width / 2, top + height / 2)
        self.assertEqual(tab.value("[V.all, document.querySelector('#fold').textContent]"), [True, "Nodes only"])
        tab.click(left + width / 2, top + height / 2)
        left, top, _, _ = tab.box("#rib")
        x, y, at = tab.value("[V.L, V.rows[0].y + V.rows[0].h / 2, V.W]")
        tab.click(left + x / 2, top + y)  # The node's name.
        self.assertEqual(tab.value("V.open.size"), 1)
        tab.drag(left + x + at * .25, top + y, left + x + at * .75)
        begin, end = tab.value("V.win")
        self.assertAlmostEqual(begin, wall * .25, delta=wall * .02)
        self.assertAlmostEqual(end, wall * .75, delta=wall * .02)
        left, top, width, height = tab.box("#zr")
        tab.click(left + width / 2, top + height / 2)
        self.assertEqual(tab.value("V.win"), [0, wall])
        incident = tab.value("D.incidents[0].at_s")
        left, top, _, _ = tab.box("#rib")
        from_, to = (.05, .2) if incident > wall / 2 else (.8, .95)  # Where it is not to be seen.
        tab.drag(left + x + at * from_, top + y, left + x + at * to)
        begin, end = tab.value("V.win")
        self.assertFalse(begin <= incident <= end)
        left, top, width, height = tab.box("[data-inc]")
        tab.click(left + width / 2, top + height / 2)
        begin, end = tab.value("V.win")
        self.assertTrue(begin <= incident <= end)
        left, top, width, height = tab.box("#theme")
        tab.click(left + width / 2, top + height / 2)
        self.assertEqual(tab.value("document.documentElement.dataset.theme"), "dark")
        self.assert_fine(tab)

    def test_keys_reach_all_of_it_and_what_the_cursor_reads_is_spoken(self):
        tab = self.browser.open(self.restarted())
        wall, seen = tab.value("D.run.wall_s"), []
        while "rib" not in seen:
            tab.key("Tab")
            seen.append(tab.value("document.activeElement.id || document.activeElement.tagName"))
            self.assertNotEqual(seen[-1], "BODY", seen)
            self.assertNotEqual(tab.value("getComputedStyle(document.activeElement).outlineStyle"), "none", seen)
        for wanted in ("perf", "json", "theme", "fold", "zi", "zo", "zr"):
            self.assertIn(wanted, seen)
        tab.key("+", "Equal", "+")
        self.assertAlmostEqual(tab.value("V.win[1] - V.win[0]"), wall / 2, delta=wall / 50)
        tab.key("ArrowRight")
        tab.key("ArrowDown")
        tab.wait_for("document.querySelector('#live').textContent.length > 0")
        self.assertIn("vm" if "vm/" in tab.value("D.hosts[1]") else tab.value("D.hosts[1]"),
                      tab.value("document.querySelector('#live').textContent"))
        rows = tab.value("V.rows.length")
        tab.key("Enter")
        self.assertGreater(tab.value("V.rows.length"), rows)
        tab.key("0", "Digit0", "0")
        self.assertEqual(tab.value("V.win"), [0, wall])
        self.assert_fine(tab)


class Live(PageCase):
    def setUp(self):
        super().setUp()
        self.port, self.http_port = free_port(), free_port()
        self.env = {"DDPRUN_TOKEN": "a token of the tests"}
        self.url = f"http://127.0.0.1:{self.http_port}/"
        self.daemon = self.start_program([os.path.join(BIN, "ddprun-rendezvous"), "--port", str(self.port), "--http-port",
                                          str(self.http_port)], env=self.env)
        self.daemon.wait_for("pages for operators")

    def run_of(self, run_id, *worker):
        return self.start("--nnodes", "1", "--nproc-per-node", "2", "--rdzv-id", run_id, "--rdzv-endpoint",
                          f"127.0.0.1:{self.port}", "--rdzv-conf", "is_host=0", *worker, env=self.env)

    def runs(self):
        with urllib.request.urlopen(self.url + "status", timeout=watch_test.PATIENCE) as reply:
            return [run for run in json.load(reply)["runs"] if run["state"] == "running" and "goodput" in run]

    def test_runs_can_be_chosen_by_mouse_and_keys_in_both_themes_and_sizes(self):
        gate = self.gate()
        jobs = [self.run_of(run_id, *shell(env_to() + PASS_GATE)) for run_id in ("job1", "job2")]
        wait_until(lambda: len(self.runs()) == 2, self.runs)
        for size in (WIDE, NARROW):
            for dark in (False, True):
                with self.subTest(size=size, dark=dark):
                    tab = self.browser.open(self.url, size, dark)
                    tab.wait_for("document.querySelectorAll('#runs button').length === 2")
                    self.assertEqual(tab.value("document.querySelector('h1').textContent"), "job1")
                    left, top, width, height = tab.box("#runs button:nth-child(2)")
                    tab.click(left + width / 2, top + height / 2)
                    self.assertEqual(tab.value("document.querySelector('h1').textContent"), "job2")
                    tab.key("ArrowLeft")
                    self.assertEqual(tab.value("document.querySelector('h1').textContent"), "job1")
                    tab.key("t", "KeyT", "t")
                    self.assertEqual(tab.value("document.documentElement.dataset.theme"), "light" if dark else "dark")
                    self.assert_fine(tab)
        gate.open()
        for job in jobs:
            self.finish(job)

    def test_it_names_the_rank_that_is_late_its_phase_and_how_late_it_is(self):
        job = self.run_of("job1", PLANTED, "steps=100000000", "forward=5", "late=1:40")
        for size in (WIDE, NARROW):
            tab = self.browser.open(self.url, size)
            tab.wait_for("document.querySelector('.late tbody td')?.textContent === '1'")
            rank, host, phase, late = tab.value("[...document.querySelectorAll('.late tbody tr:first-child td')].slice(0, 4).map(e => e.textContent)")
            known = self.runs()[0]["late"][0]
            self.assertEqual((rank, host, phase), ("1", known["host"], known["phase"]))
            self.assertRegex(late, r"^[\d.]+ ms$")
            self.assertRegex(tab.value("document.querySelector('.say').textContent"), rf"^Rank 1 on {host} is late by [\d.]+ ms a step, in {phase}\.$")
            self.assertRegex(tab.value("[...document.querySelectorAll('.c')].map(e => e.title).join('|')"), r"rank 1 [^|]*late by [1-9]")
            self.assert_fine(tab)
        job.end()

    def test_a_program_without_steps_has_no_late_ranks_and_nobody_is_said_to_be_in_time(self):
        job = self.run_of("job1", *shell(env_to() + "exec sleep 600"))
        wait_until(self.runs, "a run")
        tab = self.browser.open(self.url)
        tab.wait_for("!!document.querySelector('.say')")
        self.assertIn("no step is known", tab.value("document.querySelector('.say').textContent"))
        self.assertEqual(tab.value("document.querySelectorAll('.late').length"), 0)
        job.end()

    def test_it_says_when_the_daemon_does_not_answer_any_more(self):
        job = self.run_of("job1", *shell(env_to() + "exec sleep 600"))
        wait_until(self.runs, "a run")
        tab = self.browser.open(self.url)
        tab.wait_for("document.querySelector('h1') && document.querySelector('#off').hidden")
        self.daemon.signal(watch_test.signal.SIGKILL)
        self.daemon.wait()
        tab.wait_for("!document.querySelector('#off').hidden")
        self.assertIn("No answer from the daemon", tab.value("document.querySelector('#off').textContent"))
        self.assertEqual(tab.spills(), [])
        job.end()


if __name__ == "__main__":
    if not shutil.which("chromium"):
        skip_all("there is no chromium")
    main()
