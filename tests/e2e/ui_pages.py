"""The pages of `mortise serve --ui` in headless Chromium: a run that trains meanwhile, and the playground.

usage: ui_pages.py BUILD_DIR [--keep FOLDER]

Exits with 77 (skipped) where there is no Chromium. --keep writes pictures of the pages into FOLDER.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from chromium import Chromium, find_chromium

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
STEPS = 6
RUN = """
[model]
path = "model"
[data]
train_files = ["data/train.jsonl"]
train_batch_size = 8
max_prompt_length = 8
max_response_length = 3
[rollout]
n = 4
[actor]
ppo_mini_batch_size = 8
[[reward]]
use = "regex"
pattern = "^7"
[[reward]]
use = "exact_match"
[[reward]]
use = "python"
name = "fails"
path = "fails.py"
function = "reward"
[trainer]
val_before_train = false
default_local_dir = "run"
rollout_data_dir = "dump"
save_freq = 3
num_threads = 1
"""
FAILS = """def reward(completions, boom=None, **rest):
    if boom and boom[0]:
        raise ValueError("it went off")
    return [1.0] * len(completions)
"""
CHECK_LOOK = """(() => {
  const light = (name) => getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);
  const is_dark = matchMedia('(prefers-color-scheme: dark)').matches;
  return [document.documentElement.scrollWidth <= innerWidth || `it is ${document.documentElement.scrollWidth} wide`,
    is_dark === (light('color') > light('backgroundColor')) || 'the colors are not those of the scheme',
    Math.abs(light('color') - light('backgroundColor')) > 500 || 'text and background are alike'].filter((one) => one !== true);
})()"""


class Faults(list):
    def expect(self, is_so, text):
        if not is_so:
            self.append(text)


def start(command, folder, log):
    return subprocess.Popen(command, cwd=folder, stdout=open(folder / log, "w"), stderr=subprocess.STDOUT,
                            env={**os.environ, "HF_HUB_OFFLINE": "1"})


def wait_until(condition, what):
    end = time.monotonic() + 300
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not come")
        time.sleep(0.05)


def status_of(url, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers)).status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def look_at(browser, faults, name, keep):
    for width in (1200, 400):
        for dark in (False, True):
            browser.look(width, 1400, dark)
            time.sleep(0.1)
            scheme = "dark" if dark else "light"
            faults.extend(f"{name}, {width} pixels, {scheme}: {one}" for one in browser.ask(CHECK_LOOK))
            if keep:
                browser.picture(keep / f"{name}_{width}_{scheme}.png")
    browser.look(1200)


def check_doors(page, faults):
    url, token = page.split("/?token=")
    faults.expect(status_of(url + "/")[0] == 401, "it answers without the token")
    code, said = status_of(url + "/events?token=wrong")
    faults.expect(code == 401 and "the token is missing or wrong" in said, f"a wrong token: {code} {said}")
    faults.expect(status_of(page, Host="evil.example")[0] == 403, "it answers to another host name")
    faults.expect(status_of(page, Origin="http://evil.example")[0] == 403, "it answers to another page")
    faults.expect(status_of(f"{url}/ui/rows?run=0&step=1", Authorization=f"Bearer {token}")[0] == 200, "it has no rows")


def check_dead_stream(browser, folder):
    """A page that has heard nothing for long asks for a new stream, which continues where the old one was."""
    browser.ask("window.streams = []; window.EventSource = class extends EventSource {"
                " constructor(url) { super(url); window.streams.push(url); } };"
                " const now = performance.now.bind(performance); let hours = 0; window.clock = { true_now: now };"
                " performance.now = () => now() + 3.6e6 * ++hours; 0")
    browser.wait_for("window.streams.length >= 1")
    browser.ask("performance.now = window.clock.true_now; 0")
    with open(folder / "run/metrics.jsonl", "a") as metrics:
        metrics.write(json.dumps({"step": STEPS + 2, "critic/score/mean": 0.25}) + "\n")
    browser.wait_for(f"document.querySelector('.run').textContent.includes('{STEPS + 2} steps')")
    browser.wait_for(f"window.mortise.runs[0].metrics['critic/score/mean'][0].length === {STEPS + 2}")


def check_report(browser, page, folder, train, faults, keep):
    browser.open(page)
    browser.ask("window.is_first_load = true")
    browser.wait_for(f"document.querySelector('.run').textContent.includes('run: {STEPS} steps')")
    train.wait()
    try:
        browser.wait_for("document.querySelector('.run').textContent.includes('the run is done')")
    except RuntimeError as error:
        shown = browser.ask("document.querySelector('.run').textContent")
        raise RuntimeError(f"{error}\nshown: {shown}\ntrain ended with {train.returncode}\n"
                           f"live.json: {(folder / 'run/live.json').read_text().strip()}") from error
    browser.wait_for("document.querySelectorAll('canvas').length > 0")
    shown = browser.ask("window.mortise.runs[0].metrics['critic/score/mean'][0]")
    faults.expect(shown == list(range(1, STEPS + 1)), f"the curve has the steps {shown}")
    # What comes now is sent by the stream: a row, a warning, and a completion that wants to run a script.
    rows = [json.loads(line) for line in open(folder / "dump" / f"{STEPS}.jsonl")]
    (folder / "dump" / f"{STEPS + 1}.jsonl").write_text("".join(
        json.dumps({**row, "output": HOSTILE, "input": HOSTILE, "step": STEPS + 1}) + "\n" for row in rows) + "{broken\n")
    with open(folder / "run/metrics.jsonl", "a") as metrics:
        metrics.write(json.dumps({"step": STEPS + 1, "critic/score/mean": 0.5, "a_new/metric": 1.0}) + "\n")
    with open(folder / "run/log.txt", "a") as log:
        log.write("2026-01-01T00:00:00.000+00:00 warning the end " + HOSTILE + "\n")
    browser.wait_for(f"document.querySelector('.run').textContent.includes('{STEPS + 1} steps')")
    browser.wait_for("document.querySelector('#events').textContent.includes('the end </script>')")
    browser.wait_for(f"document.querySelectorAll('#browser select')[1].value === '{STEPS + 1}'")
    browser.wait_for("document.querySelector('.group') !== null")
    damaged = f"line {len(rows) + 1} of {STEPS + 1}.jsonl is damaged and left out"
    browser.wait_for(f"document.querySelector('#finding-list').textContent.includes('{damaged}')")
    browser.ask("document.querySelector('.group').open = true")
    browser.wait_for("document.querySelector('.group').textContent.includes('onerror')")
    faults.expect(browser.ask("window.hacked === undefined"), "a completion ran a script")
    check_dead_stream(browser, folder)
    faults.expect(browser.ask("window.is_first_load === true"), "the page was loaded again")
    look_at(browser, faults, "report", keep)


def chat(browser, faults):
    """Two turns: each side continues with its own answers."""
    browser.ask("document.getElementById('clear').click()")
    browser.ask("const form = document.getElementById('form'); form.value = 'chat'; form.dispatchEvent(new Event('change'))")
    for turn in (1, 2):
        browser.ask("document.getElementById('prompt').value = '1+2='; document.getElementById('send').click()")
        browser.wait_for(f"document.querySelectorAll('.side .tokens').length === {2 * turn}")
        browser.wait_for("[...document.querySelectorAll('.side > button')].every((one) => !one.disabled)")
    said = browser.ask("[...document.querySelectorAll('.side .tokens')].map((one) => one.childElementCount)")
    faults.expect(len(said) == 4 and all(said), f"the chat has answers of {said} tokens")


def check_playground(browser, page, faults, keep):
    browser.open(page.replace("/?", "/playground?"))
    browser.wait_for("document.querySelectorAll('.side select option').length === 6")
    names = browser.ask("[...document.querySelectorAll('.side')[0].querySelectorAll('option')].map((one) => one.textContent)")
    faults.expect(names == ["initial model", "global_step_3", "global_step_6 (newest)"], f"the models are {names}")
    browser.wait_for("!document.getElementById('data-tools').hidden")
    browser.ask("document.getElementById('take-row').click()")
    browser.wait_for("document.getElementById('prompt').value !== '' && document.getElementById('columns').value !== '{}'")
    browser.ask("Object.assign(document.getElementById('seed'), { value: '5' })")
    faults.expect(browser.ask("document.getElementById('max_tokens').value") == "3", "max_tokens is not that of the run")
    browser.ask("document.getElementById('send').click()")
    browser.wait_for("[...document.querySelectorAll('.side > button')].every((one) => !one.disabled)")
    tokens = browser.ask("[...document.querySelectorAll('.side .tokens span')].map((one) => [one.title, one.style.backgroundColor])")
    faults.expect(len(tokens) >= 2 and all(" %" in title and color.startswith("rgba(217") for title, color in tokens),
                  f"the tokens are {tokens}")
    browser.ask("for (const one of document.querySelectorAll('.side > button')) one.click()")
    browser.wait_for("[...document.querySelectorAll('.result')].every((one) => /reward -?[0-9]|no score/.test(one.textContent))")
    results = browser.ask("[...document.querySelectorAll('.result')].map((one) => one.textContent)")
    faults.expect(all("regex: " in one and "exact_match: " in one for one in results), f"the scores are {results}")
    faults.expect(all("fails: 1" in one for one in results), f"the Python reward gave {results}")
    # A reward that fails says why, and gives no 0.
    browser.ask("document.getElementById('columns').value = '{\"boom\": true}'")
    browser.ask("document.querySelector('.side > button').click()")
    browser.wait_for("/fails: no score .*it went off/.test(document.querySelector('.result').textContent)")
    chat(browser, faults)
    look_at(browser, faults, "playground", keep)
    faults.expect(browser.ask("window.hacked === undefined"), "an answer ran a script")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    if find_chromium() is None:
        print("skipped: there is no Chromium, which only ./dev pictures installs (Debian's package chromium)")
        return 77
    keep = pathlib.Path(sys.argv[3]).resolve() if "--keep" in sys.argv else None
    if keep:
        keep.mkdir(exist_ok=True)
    scratch = tempfile.TemporaryDirectory()
    folder = pathlib.Path(scratch.name)
    subprocess.run([build / "bin/make_task", ".", "--seed", "3"], cwd=folder, check=True)
    (folder / "model/chat_template.jinja").write_text("{% for one in messages %}{{ one.content }}{% endfor %}")
    (folder / "fails.py").write_text(FAILS)
    (folder / "run.toml").write_text(RUN + f"total_training_steps = {STEPS}\n")
    train = start([build / "bin/mortise", "train", "run.toml"], folder, "train.txt")
    wait_until(lambda: (folder / "run/metrics.jsonl").exists(), "the run")
    serve = start([build / "bin/mortise", "serve", "run", "--ui", "--port", "0", "--json", "trainer.num_threads=1"], folder, "serve.txt")
    faults, browser = Faults(), None
    try:
        wait_until(lambda: (folder / "serve.txt").read_text().endswith("}\n"), "the server")
        page = json.loads((folder / "serve.txt").read_text())["page"]
        browser = Chromium(folder)
        check_report(browser, page, folder, train, faults, keep)
        check_playground(browser, page, faults, keep)
        check_doors(page, faults)
        faults += [f"the console says: {line}" for line in browser.console]
        serve.terminate()
        faults.expect(serve.wait(60) == 0, f"the server ended with {serve.returncode}")
        said = (folder / "serve.txt").read_text()
        faults.expect(said.count(page.split("token=")[1]) == 1, "the token is told more than once")
    except RuntimeError as error:
        faults.append(f"{error}\n{(folder / 'serve.txt').read_text()}\n{(folder / 'train.txt').read_text()[-2000:]}")
        faults += [f"the console says: {line}" for line in browser.console] if browser else []
    finally:
        if browser:
            browser.close()
        for process in (serve, train):
            process.kill()
            process.wait()
    print("\n".join(faults) or "the pages are well")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
