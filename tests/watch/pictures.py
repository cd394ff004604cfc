#!/usr/bin/env python3
"""Takes the pictures of docs/pictures from real runs: the report and the live page in a browser, dark and light, wide and narrow,
and the screens of terminals of 80, 120 and 200 columns. Says which of them are wider than their window or complain.

    DDPRUN_BIN=build/dev/bin python3 -B tests/watch/pictures.py [--to FOLDER] [--all]

Without --all only those that docs/ shows. Needs chromium.
"""

import argparse
import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from ddprun_case import BIN, DDPRUN, free_port, wait_until

import terminal
from browser import NARROW, WIDE, Browser

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CTL, DAEMON = os.path.join(BIN, "ddprunctl"), os.path.join(BIN, "ddprun-rendezvous")
PLANTED = os.path.join(os.path.dirname(BIN), "tests", "planted_worker")
SHOWN = {"report-2-phone", "report-light", "report-dark-phone", "report-failed", "report-64-dark", "live", "live-dark-phone",
         "top-80", "top-120", "top-200", "verdict-120", "history-120"}
SCALE = 1.0


FEW_COLOURS = """(async (png, most) => {
  const image = new Image(); image.src = 'data:image/png;base64,' + png; await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data, kinds = new Map(), size = data.length / 4;
  const kind = i => data[4 * i] >> 2 << 12 | data[4 * i + 1] >> 2 << 6 | data[4 * i + 2] >> 2;
  for (let i = 0; i < size; ++i) {
    let k = kinds.get(kind(i)); if (!k) kinds.set(kind(i), k = {n: 0, sum: [0, 0, 0]});
    ++k.n; for (let c = 0; c < 3; ++c) k.sum[c] += data[4 * i + c];
  }
  const all = [...kinds.values()].sort((a, b) => b.n - a.n);
  for (const k of all) k.mean = k.sum.map(v => v / k.n);
  const palette = all.slice(0, most).map(k => k.mean);
  const far = (a, b) => (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2;
  for (const k of all) k.at = palette.reduce((best, p, i) => far(p, k.mean) < far(palette[best], k.mean) ? i : best, 0);
  let text = ''; for (let i = 0; i < size; ++i) text += String.fromCharCode(kinds.get(kind(i)).at);
  return {width: image.width, height: image.height, palette: palette.flat().map(Math.round), index: btoa(text)};
})"""


def small(browser, path, colours=256):
    """The same picture with few colours, which are a third of the bytes. The browser reads it: Python has no library of its own."""
    with open(path, "rb") as f:
        png = base64.b64encode(f.read()).decode()
    few = browser.open("about:blank").value(f"{FEW_COLOURS}('{png}', {colours})")
    width, height, index = few["width"], few["height"], base64.b64decode(few["index"])
    lines = b"".join(b"\0" + index[y * width:(y + 1) * width] for y in range(height))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)) +
                chunk(b"PLTE", bytes(few["palette"])) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b""))


class Scenes:
    """Real runs, and what they leave to look at."""

    def __init__(self, folder):
        self.folder = folder
        self.env = {**os.environ, "XDG_STATE_HOME": folder + "/state", "DDPRUN_TOKEN": "a token of the pictures", "TZ": "UTC"}
        os.symlink(PLANTED, folder + "/trainer")

    def report(self, name, *argv, code=0):
        path = f"{self.folder}/{name}.html"
        done = subprocess.run([DDPRUN, "--rdzv-id", name, *argv[:argv.index("--")], "--report-html", name + ".html", "./trainer",
                               *argv[argv.index("--") + 1:], f"state={name}.state"], cwd=self.folder, env=self.env,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stderr
        return path

    def reports(self):
        n = int(160 * SCALE)
        yield "report-2", self.report("job2", "--nproc-per-node", "2", "--", f"steps={n}", "outside=5", "forward=30", "backward=40",
                                      "startup=400")
        yield "report", self.report("job8", "--local-nodes", "2", "--nproc-per-node", "4", "--max-restarts", "2", "--", "startup=800",
                                    f"steps={n}", "outside=8", "forward=30", "backward=40", "late=5:18", f"save={n // 4}:300",
                                    f"fail=6:{n * 7 // 16}")
        yield "report-failed", self.report("job9", "--nproc-per-node", "4", "--", f"steps={n}", "forward=30", "backward=40",
                                           f"fail=2:{n // 2}", code=137)
        yield "report-64", self.report("job64", "--local-nodes", "8", "--nproc-per-node", "8", "--max-restarts", "1", "--", f"steps={n}",
                                       "outside=20", "forward=100", "backward=150", "startup=2000", "late=19:60",
                                       f"save={n // 4}:400", f"fail=27:{n * 5 // 8}")

    def start(self, *argv):
        return subprocess.Popen(argv, cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def live(self):
        """A daemon with a run of two nodes: (its pages, its endpoint, the processes)."""
        port, http = free_port(), free_port()
        processes = [self.start(DAEMON, "--port", str(port), "--http-port", str(http), "--state-dir", self.folder + "/daemon")]
        for node in range(2):
            processes.append(self.start(DDPRUN, "--rdzv-id", "job7", "--nnodes", "2", "--nproc-per-node", "4", "--max-restarts", "3",
                                        "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "is_host=0", "./trainer",
                                        "steps=4000", "outside=8", "forward=30", "backward=40", "late=5:18", "fail=2:40",
                                        "state=job7.state", "save=20:100"))

        def runs():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{http}/status", timeout=10) as reply:
                    return json.load(reply)["runs"]
            except OSError:
                return []

        wait_until(lambda: any(run["round"] == 1 and run.get("steps_per_s", 0) > 0 for run in runs()), runs)
        time.sleep(12)  # Some reports of the nodes.
        return f"http://127.0.0.1:{http}/", f"127.0.0.1:{port}", processes


class Album:
    def __init__(self, to, everything):
        self.to, self.everything, self.wrong = to, everything, []

    def wants(self, name):
        return self.everything or name in SHOWN

    def keep(self, tab, name, height=None):
        self.wrong += [f"{name}: {what}" for what in [*tab.spills(), *tab.complaints()]]
        path = f"{self.to}/{name}.png"
        tab.picture(path, height)
        small(tab.browser, path)
        print(f"{name}.png  {os.path.getsize(path) // 1024} kB", flush=True)

    def page(self, browser, url, name, height=1500):
        for size, width in ((WIDE, ""), (NARROW, "-phone")):
            for dark in (False, True):
                full = name + ("-dark" if dark else "-light" if not width and name == "report" else "") + width
                if self.wants(full):
                    self.keep(self.shown(browser, url, size, dark), full, height)

    @staticmethod
    def shown(browser, url, size, dark):
        tab = browser.open(url, size, dark)
        if url.startswith("http"):
            tab.wait_for("document.querySelector('h1') !== null")
        return tab

    def screen(self, browser, folder, name, lines, columns):
        if name.startswith(("top", "history")):  # What is no prose: a row never wraps.
            too_wide = [line for line in lines if len(terminal.plain(line)) > columns]
            self.wrong += [f"{name}: {line!r} is wider than {columns} columns" for line in too_wide]
        lines = terminal.wrapped(lines, columns)
        path = f"{folder}/{name}.screen.html"
        with open(path, "w", encoding="utf-8") as f:
            f.write(terminal.as_html(lines, columns))
        tab = browser.open("file://" + path, (int(columns * 7.83) + 26, 100))
        self.keep(tab, name)


def terminals(album, browser, scenes, endpoint):
    for columns in (80, 120, 200):
        def draw(name, argv, **more):
            full = f"{name}-{columns}"
            if album.wants(full):
                text = terminal.drawn(argv, columns, env=scenes.env, cwd=scenes.folder, **more)
                album.screen(browser, scenes.folder, full, terminal.screen_of(text), columns)

        draw("top", [CTL, "-e", endpoint, "top"], lines=24, until=["q quit"], keys=[b"\x1b[C"])
        draw("top-help", [CTL, "-e", endpoint, "top"], lines=24, until=["q quit"], keys=[b"?"])
        draw("history", [CTL, "history"])
        draw("past", [CTL, "history", "job9"])
        draw("verdict", [DDPRUN, "--nproc-per-node", "4", "./trainer", "steps=40", "forward=20", "fail=2:20"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", default=os.path.join(ROOT, "docs", "pictures"))
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    os.makedirs(options.to, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="ddprun-pictures-")
    album, scenes, processes = Album(options.to, options.all), Scenes(folder), []
    browser = Browser(folder)
    try:
        for name, path in scenes.reports():
            print(f"{os.path.basename(path)}  {os.path.getsize(path) // 1024} kB", flush=True)
            album.page(browser, "file://" + path, name)
        pages, endpoint, processes = scenes.live()
        album.page(browser, pages, "live")
        terminals(album, browser, scenes, endpoint)
    finally:
        browser.close()
        for process in reversed(processes):
            process.terminate()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    for what in album.wrong:
        print("WRONG " + what)
    return 1 if album.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
