# A web service for tests of the reward `http`. Prints its port, then serves until its standard input ends.
#
# Scores a row by the length of its completion. POST /NAME picks a behaviour:
#   /score         {"rewards": [...]}             /list     the list alone
#   /flaky/K       503 for the first K requests   /down     always 503
#   /entries       objects: score, a number next to it, null, an error, nonsense
#   /together/K    no answer before K requests have come
#   /client_error  400   /slow  never            /wrong  one reward too few   /text  no JSON   /secret  needs the token
#   /echo          400 with the token that came
# GET /log gives what came: {"requests": [[path, rows], ...], "most_at_once": N, "last": the last body}.
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
log = {"requests": [], "most_at_once": 0, "last": None}
at_once = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body):
        body = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        with lock:
            self.reply(200, json.dumps(log))

    def do_POST(self):
        global at_once
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            at_once += 1
            log["most_at_once"] = max(log["most_at_once"], at_once)
            log["requests"].append([self.path, len(request["rows"])])
            log["last"] = request
            seen = sum(1 for path, _ in log["requests"] if path == self.path)
        try:
            self.answer(request, seen)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has given up
        with lock:
            at_once -= 1

    def answer(self, request, seen):
        rewards = [len(row["completion"]) for row in request["rows"]]
        path = self.path
        if path == "/down" or (path.startswith("/flaky/") and seen <= int(path.split("/")[2])):
            return self.reply(503, "try\nlater")
        if path == "/client_error":
            return self.reply(400, "what is this")
        if path == "/slow":
            time.sleep(1_000_000)
        while path.startswith("/together/") and len(log["requests"]) < int(path.split("/")[2]):
            time.sleep(0.002)
        if path == "/secret" and self.headers["Authorization"] != "Bearer sesame":
            return self.reply(401, "who are you")
        if path == "/echo":
            return self.reply(400, "bad token: " + str(self.headers["Authorization"]))
        if path == "/wrong":
            return self.reply(200, json.dumps(rewards[1:]))
        if path == "/text":
            return self.reply(200, "fine")
        if path == "/deep":
            return self.reply(200, "[" * 300_000 + "]" * 300_000)
        if path == "/list":
            return self.reply(200, json.dumps(rewards))
        if path == "/entries":
            entries = [{"score": 0.5, "acc": True, "note": "text", "n": 3}, None, {"error": "too hard"}, {"acc": 1}, "x"]
            return self.reply(200, json.dumps({"rewards": entries[: len(rewards)]}))
        self.reply(200, json.dumps({"rewards": rewards}))


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
