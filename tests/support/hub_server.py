"""A hub of models and data sets on this machine, for tests: the calls of huggingface.co that huggingface_hub uses.

  python3 hub_server.py FOLDER [--no-hashes]

FOLDER/models/ORG/NAME/REVISION/... and FOLDER/datasets/ORG/NAME/REVISION/... hold the files; REVISION's "/" is written "%2F".
The commit of a revision is a hash of its files. Files of *.safetensors and *.parquet are large ones: they are named by
their SHA-256, and their bytes come from a second server (as from the hub's store), which must never see a token. ORG
"private" wants the token "hf_right", ORG "old" has moved to "new". It prints its port, and appends a line per request to
FOLDER/requests: "METHOD HOST PATH TOKEN RANGE". A line "KIND NAME" in FOLDER/faults is done to the next request whose path
ends with NAME, and then forgotten: "cut" ends the connection in the middle, "500" and "429" are answers, "wrong" changes a
byte. --no-hashes: the list of files has none, as on some mirrors.
"""
import hashlib
import http.server
import json
import sys
import threading
import urllib.parse
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
HAS_HASHES = "--no-hashes" not in sys.argv
LOCK = threading.Lock()


def is_large(path):
    return path.suffix in (".safetensors", ".parquet")


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def commit_of(folder):
    text = "".join(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in files_of(folder))
    return hashlib.sha1(text.encode()).hexdigest()


def find(kind, repo, revision):
    """The folder of a branch, or of a commit that a branch has or had (FOLDER/.../.commits/COMMIT)."""
    base = ROOT / kind / repo
    if not base.is_dir():
        return None
    for folder in base.iterdir():
        if folder.is_dir() and revision in (urllib.parse.unquote(folder.name), commit_of(folder)):
            return folder
    return "no revision"


def take_fault(path):
    with LOCK:
        file = ROOT / "faults"
        lines = file.read_text().splitlines() if file.exists() else []
        for line in lines:
            kind, name = line.split()
            if path.endswith(name):
                lines.remove(line)
                file.write_text("".join(one + "\n" for one in lines))
                return kind
    return None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def note(self):
        token = self.headers.get("Authorization", "-").replace("Bearer ", "")
        with LOCK, open(ROOT / "requests", "a") as out:
            out.write(f"{self.command} {self.host_name} {self.path} {token} {self.headers.get('Range', '-')}\n")

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_bytes(self, data, headers, fault):
        first, status = 0, 200
        if asked := self.headers.get("Range"):
            first, status = int(asked.removeprefix("bytes=").split("-")[0]), 206
            if first >= len(data):
                return self.answer(416)
            headers = [*headers, ("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")]
        if fault == "wrong":
            data = data[:-1] + bytes([data[-1] ^ 1])
        data = data[first:]
        if fault == "cut":
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            return None
        return self.answer(status, data, headers)

    def do_HEAD(self):
        self.do_GET()


class Store(Handler):
    host_name = "store"

    def do_GET(self):
        self.note()
        path = ROOT / urllib.parse.unquote(self.path.split("?")[0]).lstrip("/")
        self.send_bytes(path.read_bytes(), [], take_fault(self.path))


class Hub(Handler):
    host_name = "hub"

    def refuse(self, status, code):
        self.answer(status, b"", [("X-Error-Code", code), ("X-Error-Message", code)])

    def do_GET(self):
        self.note()
        fault = None if is_large(Path(self.path)) else take_fault(self.path)
        if fault in ("500", "429"):
            return self.answer(int(fault), b"", [("Retry-After", "0")])
        path, _, query = self.path.partition("?")
        words = path.lstrip("/").split("/")
        if words[0] == "api":
            kind, repo, revision = words[1], "/".join(words[2:4]), words[5] if len(words) > 5 else "main"
        else:
            kind = words.pop(0) if words[0] == "datasets" else "models"
            repo, revision = "/".join(words[:2]), words[3]
        if repo.startswith("old/"):
            return self.answer(307, b"", [("Location", self.path.replace("old/", "new/", 1))])
        if repo.startswith("private/") and self.headers.get("Authorization") != "Bearer hf_right":
            return self.refuse(401, "RepoNotFound")
        if repo.startswith("gated/"):
            return self.refuse(403, "GatedRepo")
        folder = find(kind, repo, urllib.parse.unquote(revision))
        if folder is None:
            return self.refuse(404, "RepoNotFound")
        if folder == "no revision":
            return self.refuse(404, "RevisionNotFound")
        if path.startswith("/api/"):
            if words[4:5] == ["tree"]:
                return self.list_tree(folder)
            return self.list_files(folder, repo, "blobs" in query and HAS_HASHES)
        return self.send_file(folder, urllib.parse.unquote("/".join(words[4:])), fault)

    def list_files(self, folder, repo, with_hashes):
        siblings = []
        for path in files_of(folder):
            data, entry = path.read_bytes(), {"rfilename": str(path.relative_to(folder))}
            if with_hashes:
                entry |= {"size": len(data), "blobId": git_id(data)}
                if is_large(path):
                    entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        body = {"id": repo, "modelId": repo, "sha": commit_of(folder), "private": False, "tags": [], "downloads": 0,
                "likes": 0, "siblings": siblings}
        self.answer(200, json.dumps(body).encode(), [("Content-Type", "application/json")])

    def list_tree(self, folder):
        entries = []
        for path in files_of(folder):
            data = path.read_bytes()
            entry = {"type": "file", "path": str(path.relative_to(folder)), "size": len(data), "oid": git_id(data)}
            if is_large(path):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        self.answer(200, json.dumps(entries).encode(), [("Content-Type", "application/json")])

    def send_file(self, folder, name, fault):
        path = folder / name
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        data = path.read_bytes()
        headers = [("X-Repo-Commit", commit_of(folder)), ("Accept-Ranges", "bytes")]
        if not is_large(path):
            return self.send_bytes(data, [*headers, ("ETag", f'"{git_id(data)}"')], fault)
        location = f"http://127.0.0.1:{STORE.server_port}/{urllib.parse.quote(str(path.relative_to(ROOT)))}"
        return self.answer(302, b"", [*headers, ("X-Linked-Etag", f'"{hashlib.sha256(data).hexdigest()}"'),
                                      ("X-Linked-Size", str(len(data))), ("Location", location)])


STORE = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
HUB = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
for server in (STORE, HUB):
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(HUB.server_port, flush=True)
sys.stdin.read()
