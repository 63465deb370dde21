"""Makes the site of the docs and looks at it in headless Chromium: its scripts run, the search finds a key and a rule, the
menu of a narrow window opens, and no page is wider than the window.

usage: docs_site.py SOURCE BUILD_DIR

Exits with 77 (skipped) where there is no Chromium or no mkdocs.
"""

import functools
import http.server
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

from chromium import Chromium, find_chromium


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def look(browser, site):
    faults = []
    browser.open(f"{site}/index.html")
    shown = browser.ask("document.querySelector('.wy-menu').textContent")
    faults += [f"the menu lacks {name}" for name in ("ABI rules", "Write a plugin", "Cookbook", "Keys") if name not in shown]
    for words, page in (("kl_loss_coef", "reference/keys.html"), ("nodelete", "reference/rules.html")):
        browser.open(f"{site}/search.html?q={words}")
        browser.wait_for(f"[...document.querySelectorAll('#mkdocs-search-results a')].some((one) => one.href.includes('{page}'))")
    browser.open(f"{site}/reference/rules.html", width=400)
    browser.wait_for("document.querySelector('.wy-table-responsive table.docutils') !== null")
    browser.ask("document.querySelector('[data-toggle=wy-nav-top]').click()")
    browser.wait_for("document.querySelector('.wy-nav-side').classList.contains('shift')")
    for page in ("index", "cookbook", "metrics", "reference/keys", "reference/commands", "reference/rules", "diagnosis"):
        browser.open(f"{site}/{page}.html", width=400)
        wide = browser.ask("document.documentElement.scrollWidth")
        if wide > 400:
            faults.append(f"{page} is {wide} wide in a window of 400")
    return faults + [f"the console says: {line}" for line in browser.console]


def main():
    source, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    if find_chromium() is None or shutil.which("mkdocs") is None:
        print("skipped: there is no Chromium or no mkdocs, which only ./dev pictures and ./dev docs install (packages chromium, mkdocs)")
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, source / "apps/dev/site.py", build / "bin/mortise", f"{scratch}/site"], check=True)
        handler = functools.partial(Quiet, directory=f"{scratch}/site/html")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = Chromium(scratch)
        try:
            faults = look(browser, f"http://127.0.0.1:{server.server_address[1]}")
        finally:
            browser.close()
            server.shutdown()
    print("\n".join(faults) or "the site is well")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
