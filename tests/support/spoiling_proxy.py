# Stands between a client and a real rollout server, and spoils every third answer to a completion with a seed, each kind of
# fault in turn.
#   spoiling_proxy.py http://127.0.0.1:PORT
# Prints its port, then serves until its standard input ends. GET /spoiled gives how often each fault came.
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

upstream = sys.argv[1]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
lock = threading.Lock()
num_completions = 0
spoiled = {}


def without_a_choice(text):
    answer = json.loads(text)
    answer["choices"].pop()
    return json.dumps(answer).encode()


def with_nan(text):
    answer = json.loads(text)
    answer["choices"][0]["logprobs"]["token_logprobs"][0] = float("nan")
    return json.dumps(answer).encode()


FAULTS = {
    "status 500": lambda self, text: self.reply(500, b'{"error":{"message":"spoiled"}}'),
    "half a body": lambda self, text: self.reply(200, text, len(text) // 2),
    "garbage": lambda self, text: self.reply(200, b"<html>busy</html>"),
    "a choice too few": lambda self, text: self.reply(200, without_a_choice(text)),
    "NaN": lambda self, text: self.reply(200, with_nan(text)),
    "closed": lambda self, text: setattr(self, "close_connection", True),
    "no answer": lambda self, text: time.sleep(1_000_000),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body, cut=None):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def do_GET(self):
        if self.path == "/spoiled":
            return self.reply(200, json.dumps(spoiled).encode())
        self.forward(None)

    def do_POST(self):
        self.forward(self.rfile.read(int(self.headers["Content-Length"])))

    def forward(self, body):
        request = urllib.request.Request(upstream + self.path, body, {"Content-Type": "application/json"})
        try:
            with opener.open(request) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        fault = self.next_fault(body)
        try:
            if fault:
                FAULTS[fault](self, text)
            else:
                self.reply(status, text)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def next_fault(self, body):
        global num_completions
        if self.path != "/v1/completions" or b'"seed"' not in body:
            return None
        with lock:
            num_completions += 1
            if num_completions % 3 != 0:
                return None
            fault = list(FAULTS)[num_completions // 3 % len(FAULTS)]
            spoiled[fault] = spoiled.get(fault, 0) + 1
            return fault


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
server.handle_error = lambda *_: None  # a client that gave up has closed its connection
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
