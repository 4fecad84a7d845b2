"""Chromium driven over its DevTools protocol, through a pipe: no driver program, no library, no port.

    with Browser(directory) as browser:
        tab = browser.tab("http://127.0.0.1:8000/", width=360, dark=True)
        tab.until("document.title == 'ready'")

Messages are JSON ended by a zero byte, on descriptors 3 (to the browser) and 4 (from it). A tab has a context of its own, so
tabs share nothing.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions"),
    *("--disable-default-apps", "--no-default-browser-check", "--hide-scrollbars", "--remote-debugging-pipe"),
]
PATIENCE = 30  # seconds, for a machine that is busy with other things
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


class Browser:
    """One process; `tab` opens a page in it."""

    def __init__(self, directory):
        self.numbers, self.buffer, self.answers, self.tabs = iter(range(1, 10**9)), b"", {}, {}
        (theirs_in, self.to), (self.back, theirs_out) = os.pipe(), os.pipe()
        # Above 10, so that moving them to 3 and 4 overwrites neither.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
        command = [BROWSER, *FLAGS, f"--user-data-dir={directory}", "about:blank"]
        log = os.open(Path(directory) / "browser.log", os.O_WRONLY | os.O_CREAT)
        moves = [(os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4), (os.POSIX_SPAWN_DUP2, log, 2)]
        self.process = os.posix_spawn(BROWSER, command, os.environ, file_actions=moves, setpgroup=0)
        for end in (theirs_in, theirs_out, log, *ends):
            os.close(end)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError, TimeoutError):
            self.call("Browser.close")
        deadline = time.monotonic() + 5
        while os.waitpid(self.process, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.killpg(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
                break
            time.sleep(0.02)
        os.close(self.to)
        os.close(self.back)

    def tab(self, address, *, width=1280, height=900, dark=False, still=True):
        """A page in a context of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self.tabs[session] = Tab(self, session, context)
        tab.look(width, height, dark=dark, still=still)
        tab.open(address)
        return tab

    def call(self, method, session=None, **params):
        """Send, and wait for the answer; whatever happens meanwhile is noted by the tabs."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while number not in self.answers:
            self.read(deadline)
        answer = self.answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def read(self, deadline):
        if not select.select([self.back], [], [], max(0, deadline - time.monotonic()))[0]:
            raise TimeoutError(f"the browser did not answer within {PATIENCE} s")
        got = os.read(self.back, 1 << 20)
        if not got:
            raise ConnectionError("the browser ended")
        *whole, self.buffer = (self.buffer + got).split(b"\0")
        for message in map(json.loads, whole):
            if "id" in message:
                self.answers[message["id"]] = message
            elif message.get("sessionId") in self.tabs:
                self.tabs[message["sessionId"]].note(message["method"], message["params"])


class Tab:
    """A page; `requests` are the addresses it asked for, `complaints` its errors, warnings and breaches of its policy."""

    def __init__(self, browser, session, context):
        self.browser, self.session, self.context = browser, session, context
        self.requests, self.complaints = [], []
        for domain in ("Page", "Runtime", "Network", "Log", "DOM", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def note(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":  # a refused request is told here too; the page has words for that
            entry = params["entry"]
            if entry["source"] != "network":
                self.complaints.append(entry["text"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{params['type']}")
        elif method == "Audits.issueAdded" and "contentSecurityPolicyIssueDetails" in params["issue"]["details"]:
            self.complaints.append(json.dumps(params["issue"]["details"]))

    def look(self, width, height, *, dark=False, still=True):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.until("document.readyState == 'complete' && location.href != 'about:blank'")

    def run(self, expression):
        """The value of an expression in the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise AssertionError(f"{expression}: {details.get('exception', {}).get('description', details['text'])}")
        return answer["result"].get("value")

    def until(self, expression, patience=PATIENCE):
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError, RuntimeError):  # the page may just be loading
                if value := self.run(expression):
                    return value
            time.sleep(0.02)
        text = self.run("document.body ? document.body.innerText : ''")
        raise AssertionError(f"not within {patience} s: {expression}\n{text}\n{self.complaints}")

    def text(self, identity):
        return self.run(f"document.getElementById({identity!r}).innerText").replace("\u202f", " ")

    def click(self, selector):
        """A real click with the mouse, in the middle of the element."""
        x, y = self.run(f"""(() => {{ const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center"}}); const box = found.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2]; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, *keys):
        for key in keys:
            facts = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
            text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def paste(self):
        """Ctrl+V."""
        key = {"key": "v", "code": "KeyV", "windowsVirtualKeyCode": 86, "modifiers": 2}
        self.call("Input.dispatchKeyEvent", type="keyDown", commands=["paste"], **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def allow(self, *permissions):
        self.browser.call("Browser.grantPermissions", permissions=permissions, browserContextId=self.context)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def choose(self, selector, file):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def drop(self, selector, file):
        """A file from outside, dragged over the element and let go."""
        x, y = self.run(f"""(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();
            return [box.left + box.width / 2, box.top + 60]; }})()""")
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def picture(self, file, whole=True):
        """The page as PNG."""
        height = self.run("document.documentElement.scrollHeight") if whole else None
        width = self.run("innerWidth")
        clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}} if whole else {}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)["data"]
        Path(file).write_bytes(base64.b64decode(data))

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
        del self.browser.tabs[self.session]
