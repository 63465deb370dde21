"""Drives a headless Chromium by its pipe of the DevTools protocol, with the standard library alone."""

import base64
import json
import os
import shutil
import subprocess
import time


def find_chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromium:
    """One page. `console` has what the page wrote as warnings and errors, and exceptions that nobody caught."""

    def __init__(self, folder):
        to_browser, self.out = os.pipe()
        self.inn, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        command = (f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}')
        self.process = subprocess.Popen(
            ["bash", "-c", command, find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={folder}/profile", "about:blank"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.last_id, self.console, self.session = b"", 0, [], None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one for one in targets if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") != self.last_id:
                self.note(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def read(self):
        while b"\0" not in self.buffer:
            part = os.read(self.inn, 1 << 16)
            if not part:
                raise RuntimeError("Chromium has ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.console.append(params["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        if event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(one.get("value", one.get("description"))) for one in params["args"]))
        if event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(params["entry"]["text"])

    def open(self, url, width=1200, height=900, dark=False):
        self.look(width, height, dark)
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def look(self, width, height=900, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def ask(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression, seconds=300):
        """Until the expression is true; its last value otherwise, as an error."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.ask(f"(() => {{ try {{ return {expression}; }} catch (error) {{ return String(error); }} }})()")
            if value is True:
                return
            time.sleep(0.05)
        raise RuntimeError(f"this did not come true: {expression} (it is {value!r})")

    def picture(self, path):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=False)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.out)
        os.close(self.inn)
