# The first part of every Python program that a pack runs: frames over a socket, and texts of errors. The part of the
# pack follows it, in the same module.
#
# One socket, file descriptor 3; frames as in python_process.h: three numbers of 8 bytes (length, request, process) and
# JSON. Only the process that was started reads and writes them: a child that the user's code forked loses the socket,
# and ends where it would come back to this program. Standard library only, Python 3.8 or newer. What the user's code
# prints goes to standard error (the parent sees to that), never into the socket.
import asyncio
import errno
import importlib.machinery
import importlib.util
import inspect
import json
import math
import os
import re
import signal
import socket
import struct
import sys
import traceback

WHO, TABLE = "reward", "its [[reward]] table"  # whose code it is, and where its rights are


def utf8(text):
    """The bytes of any text. Halves of a character, as in an emoji that was cut, become U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


OWN_PROCESS, process_now, end_now = os.getpid(), os.getpid, os._exit


def end_if_forked():
    """Ends a child that the user's code forked and that came back: the process that was asked continues alone."""
    if process_now() != OWN_PROCESS:
        try:
            os.write(2, b"the %s forked and the child returned; the child was ended here. End it with os._exit(0)\n" % WHO.encode())
        finally:
            end_now(1)


class Wire:
    """Frames over the socket. Programs that the user's code starts do not inherit it, and its forks close it."""

    def __init__(self):
        self.fd = os.dup(3)
        os.close(3)
        self.request = 0
        os.register_at_fork(after_in_child=self.forget)

    def forget(self):
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def read(self):
        end_if_forked()
        head = self._exactly(24)
        if head is None:
            return None
        size, self.request, _ = struct.unpack("<QQQ", head)
        return json.loads(self._exactly(size))

    def _exactly(self, size):
        parts = []
        while size > 0:
            part = os.read(self.fd, min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def write(self, message):
        end_if_forked()
        body = utf8(json.dumps(message, allow_nan=False, ensure_ascii=False))
        rest = memoryview(struct.pack("<QQQ", len(body), self.request, OWN_PROCESS) + body)
        while rest:
            rest = rest[os.write(self.fd, rest) :]


class Reply:
    """Where the answers to one request go. What a task of the user's code gives after its end is left out."""

    def __init__(self, wire):
        self.wire, self.is_open = wire, True

    def write(self, message):
        if self.is_open:
            self.wire.write(message)

    def close(self):
        self.is_open = False


class Unusable(Exception):
    """The user's file or function cannot be used; the text says what to do."""


def place(frame):
    return "%s:%d, in %s" % (frame.filename, frame.lineno, frame.name)


def describe(error, path):
    """The last line of the traceback, where in the user's file it came from, and a hint where a limit is the cause."""
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        return "%s (%s:%s)" % (text, error.filename, error.lineno)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != "<string>"]
    own = [f for f in frames if f.filename == path]
    if own:
        text += " (%s%s)" % (place(own[-1]), "" if own[-1] is frames[-1] else "; raised at " + place(frames[-1]))
    elif frames:
        text += " (%s)" % place(frames[-1])
    return text + hint(error, frames)


def hint(error, frames):
    code = getattr(error, "errno", None)
    in_socket = any(os.path.basename(f.filename) in ("socket.py", "connection.py") for f in frames)
    if code == errno.EACCES and (in_socket or "socket" in str(error)):
        return '; if the %s is to use the network, add allow = ["network"] to %s' % (WHO, TABLE)
    withheld = [name for name in os.environ.get("MORTISE_ENV_WITHHELD", "").split(",") if re.search(r"\b%s\b" % re.escape(name), str(error)) and len(name) > 3]
    if withheld:
        return '; rewards do not get the variable %s by default: add env = ["%s"] to the table [plugins]' % (
            withheld[0],
            withheld[0],
        )
    # The resolver gives up without saying why; a limit is the usual cause.
    if isinstance(error, socket.gaierror):
        return '; if the network is not allowed here, add allow = ["network"] to %s' % TABLE.replace("its", "the")
    return ""


def load(path):
    folder, name = os.path.split(path)
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    sys.path.insert(0, folder)  # as `python FILE` would have it
    name = os.path.splitext(name)[0]
    if not name.isidentifier() or name in sys.modules:
        name = "mortise_reward_file"
    spec = importlib.util.spec_from_file_location(name, path, loader=importlib.machinery.SourceFileLoader(name, path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def shown(value):
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def die_with_parent():
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    except Exception:  # a Python without ctypes ends when it next reads
        pass


# Reads the settings, sends what `start` makes of them (or why it cannot), and hands every request to `answer`, with the
# Reply for it.
def serve(start, answer):
    die_with_parent()
    wire = Wire()
    settings = wire.read()
    if settings is None:
        return
    try:
        runner = start(settings)
    except Unusable as error:
        return wire.write({"error": str(error)})
    wire.write(runner.ready())
    while True:
        request = wire.read()
        if request is None:
            return
        reply = Reply(wire)
        answer(runner, request, reply)
        reply.close()
