"""Chromium without a window, driven through its debugging pipe: no other package is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

PATIENCE = 60
WIDE, NARROW = (1280, 900), (420, 800)


class Browser:
    def __init__(self, folder):
        self.program = shutil.which("chromium")
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        argv = [self.program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                "--force-device-scale-factor=1", "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile",
                "--remote-debugging-pipe", "about:blank"]

        # The pipe's ends are 3 and 4 there; both may be in the way of the other before.
        script = f'exec 8<&{to_read} 9>&{to_write} 3<&8 4>&9 8<&- 9>&-; exec "$@"'
        self._process = subprocess.Popen(["bash", "-c", script, "bash", *argv], pass_fds=(to_read, to_write),
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_read)
        os.close(to_write)
        self._number, self._text, self.events = 0, b"", []

    def close(self):
        os.close(self._out)
        os.close(self._in)
        self._process.kill()
        self._process.wait()

    def ask(self, method, session=None, **params):
        self._number += 1
        question = {"id": self._number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(question).encode() + b"\0")
        while True:
            message = self._next(PATIENCE)
            if message is None:
                raise TimeoutError(f"{method} is not answered")
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def _next(self, patience):
        until = time.monotonic() + patience
        while b"\0" not in self._text:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                return None
            got = os.read(self._in, 1 << 20)
            if not got:
                raise EOFError("the browser has ended")
            self._text += got
        message, _, self._text = self._text.partition(b"\0")
        return json.loads(message)

    def drain(self, seconds=0):
        while (message := self._next(seconds)) is not None:
            self.events.append(message)

    def open(self, url, size=WIDE, dark=False):
        return Tab(self, url, size, dark)


class Tab:
    def __init__(self, browser, url, size, dark):
        self.browser, self.size = browser, size
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False)
        media = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}  # Nothing glides there.
        self.ask("Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in media.items()])
        began = time.monotonic()
        self.ask("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")
        self.seconds = time.monotonic() - began

    def ask(self, method, **params):
        return self.browser.ask(method, self.session, **params)

    def value(self, script):
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, script):
        until = time.monotonic() + PATIENCE
        while not self.value(script):
            if time.monotonic() > until:
                raise TimeoutError(f"{script} never becomes true")
            time.sleep(0.02)

    def key(self, key, code=None, text=None):
        common = {"key": key, "code": code or key, "windowsVirtualKeyCode": KEYS.get(key, ord(key[0].upper()))}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def mouse(self, kind, x, y, **more):
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1, **more)

    def click(self, x, y):
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def drag(self, x, y, to_x):
        self.mouse("mousePressed", x, y, buttons=1)
        for step in range(1, 6):
            self.mouse("mouseMoved", x + (to_x - x) * step / 5, y, buttons=1)
        self.mouse("mouseReleased", to_x, y)

    def box(self, selector):
        """(left, top, width, height) of the first such element, after scrolling to it."""
        return self.value(f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();
            return [b.left, b.top, b.width, b.height] }})()""")

    def picture(self, path, height=None):
        """The page as high as it is, or its top."""
        whole = self.value("Math.ceil(document.documentElement.getBoundingClientRect().height)")
        clip = {"x": 0, "y": 0, "width": self.size[0], "height": min(whole, height or whole), "scale": 1}
        data = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def complaints(self):
        """What a developer would find in the console, and whatever was fetched from elsewhere."""
        self.browser.drain()
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:500])
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"])[:500])
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        return found

    def fetched(self):
        self.browser.drain()
        return [event["params"]["request"]["url"] for event in self.browser.events
                if event.get("sessionId") == self.session and event["method"] == "Network.requestWillBeSent"]

    def spills(self):
        """How far the page is wider than the window, and the elements at fault."""
        return self.value("""(() => { const w = document.documentElement.clientWidth, r = [];
            if (document.documentElement.scrollWidth <= w) return r;
            for (const e of document.querySelectorAll('body *')) { const b = e.getBoundingClientRect();
              if (b.right > w + 1 && b.width > 0) r.push(e.tagName + '.' + e.className + ' ' + Math.round(b.right - w)) }
            return r.length ? r : ['the page'] })()""")


KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
