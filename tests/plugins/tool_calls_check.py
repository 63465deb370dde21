# The tools of the environment `python`: calls of one turn, and a server of the Model Context Protocol.
# tool_calls_check.py SOURCE_DIR. Needs the standard library alone.
import io
import os
import sys
import tempfile
import types

TOOLS = '''
import asyncio, sys

order = []


async def slow(a: int):
    """Takes its time, the longer the smaller a is.

    Args:
        a: a number
    """
    order.append(("begins", a))
    while a == 1 and ("ends", 2) not in order:
        await asyncio.sleep(0.001)
    order.append(("ends", a))
    return a


def plain(a: int):
    """Is no coroutine.

    Args:
        a: a number
    """
    order.append(("plain", a))
    return a * 10


async def leave(a: int):
    """Leaves.

    Args:
        a: a number
    """
    sys.exit(a)


def own(**given):
    return given


own.json_schema = {"description": "brings its schema", "inputSchema": {"type": "object", "properties": {}}}
'''

# Lists its tools on two pages, asks something itself, and answers two calls in the reverse order once it has both.
SERVER = '''
import json, sys


def say(number, result):
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)


held = []
for line in sys.stdin:
    asked = json.loads(line)
    method, number = asked.get("method"), asked.get("id")
    if method == "initialize":
        assert asked["params"]["protocolVersion"] == "2025-06-18"
        say(number, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}})
    elif method == "tools/list" and "cursor" not in asked["params"]:
        print(json.dumps({"jsonrpc": "2.0", "id": 99, "method": "ping"}), flush=True)
        say(number, {"tools": [{"name": "add", "description": "Adds", "inputSchema": {"type": "object"}}], "nextCursor": "x"})
    elif method == "tools/list":
        say(number, {"tools": [{"name": "boom", "description": "Fails", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        if asked["params"]["arguments"].get("a") == 0:
            sys.exit(4)
        held.append(asked)
        if len(held) < 2:
            continue
        for one in reversed(held):
            given = one["params"]["arguments"]
            text = str(given["a"] + given["b"]) if one["params"]["name"] == "add" else "no"
            say(one["id"], {"content": [{"type": "text", "text": text}], "isError": one["params"]["name"] == "boom"})
        held = []
'''


def load_driver(root):
    source = "".join(open(os.path.join(root, "plugins", name)).read()
                     for name in ("shared/python_base.py", "environment/python/verl_tools.py",
                                  "environment/python/python_turns_driver.py"))
    driver = {"__name__": "driver"}
    exec(compile(source.replace("\nserve(Turns, answer)\n", "\n"), "driver", "exec"), driver)
    return driver


def check(driver, folder):
    tools, server = os.path.join(folder, "tools.py"), os.path.join(folder, "server.py")
    open(tools, "w").write(TOOLS)
    open(server, "w").write(SERVER)
    turns = driver["Turns"]({"tools": ["%s:%s" % (tools, n) for n in ("slow", "plain", "leave", "own")],
                             "mcp": ["%s %s" % (sys.executable, server)], "class": "", "kwargs": {}})
    names = [schema["function"]["name"] for schema in turns.schemas]
    assert names == ["slow", "plain", "leave", "own", "add", "boom"], names
    assert turns.schemas[3]["function"]["parameters"] == {"type": "object", "properties": {}}

    def call(name, **given):
        return {"name": name, "arguments": given}

    def step(*calls):
        return turns.step({"episode": 1, "last": False, "calls": list(calls)})

    given = step(call("slow", a=1), call("add", a=2, b=3), call("slow", a=2), call("boom"), call("plain", a=4),
                 call("leave", a=1), call("own", z=1), {"name": "x", "error": "cannot be read"})
    contents = [message["content"] for message in given["messages"]]
    assert contents == ["1", "5", "2", '{"error": "ValueError: no"}', "40", '{"error": "SystemExit: 1"}', '{"z": 1}',
                        '{"error": "ValueError: cannot be read"}'], contents
    assert (given["calls"], given["failed"]) == (8, 3), given
    order = sys.modules["tools"].order
    assert order == [("plain", 4), ("begins", 1), ("begins", 2), ("ends", 2), ("ends", 1)], order
    try:
        step(call("add", a=0))
    except driver["Unusable"] as error:
        assert "ended with exit code 4" in str(error), error
    else:
        raise AssertionError("a server that ends is an error of the episode, not an answer to the model")


# A server whose list of tools is the JSON of its argument. A text is written as it is.
LISTING = '''
import json, sys

given = json.loads(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {}}), flush=True)
    elif asked.get("method") == "tools/list":
        print(given if isinstance(given, str) else json.dumps(dict(given, id=asked["id"])), flush=True)
'''


def check_lists(driver, folder):
    """What is wrong with a server is said at the start, and nothing waits for ever."""
    file = os.path.join(folder, "listing.py")
    open(file, "w").write(LISTING)
    for given, why in (
            ({"result": {"tools": []}}, "has no tools"),
            ({"result": {"tools": [5]}}, "lists no tools as MCP asks: {'tools': [5]}"),
            ({"result": {"tools": [{"description": "no name"}]}}, "lists no tools as MCP asks: "),
            ({"result": {}}, "lists no tools as MCP asks: {}"),
            ({}, "sent an answer without a result"),
            ({"error": {"message": "no"}}, "refused: no"),
            ({"error": "no"}, "refused: no"),
            ({"result": {"tools": [], "nextCursor": "x"}}, "gives a page of its tools twice, at the cursor 'x'"),
            ("Listening ...", "wrote a line that is no message: b'Listening ...\\n'. Its log belongs on standard error"),
            ("5", "wrote a line that is no message: b'5\\n'")):
        server = driver["McpServer"](driver["shlex"].join([sys.executable, file, driver["json"].dumps(given)]))
        try:
            server.tools()
        except driver["Unusable"] as error:
            assert why in str(error), error
        else:
            raise AssertionError("no fault is found in %r" % (given,))
        server.process.kill()
        server.process.wait()


def check_answers(driver):
    """Answers to a call, and messages without the id of a request, that are not as MCP asks."""
    for message, why in (
            ({"id": 1}, "sent an answer without a result: {'id': 1}"),
            ({"id": 1, "result": []}, "sent an answer without a result: "),
            ({"id": 1, "result": {"content": "5"}}, "whose content is no list of parts: {'content': '5'}"),
            ({"id": 1, "result": {"content": ["5"]}}, "whose content is no list of parts: "),
            ({"id": None, "error": {"code": -32700}}, "sent an answer without the id of a request: {'id': None"),
            ({"id": [1], "result": {}}, "sent an answer without the id of a request: {'id': [1]")):
        server = driver["McpServer"].__new__(driver["McpServer"])
        server.command, server.answers = "a server", {}
        server.process = types.SimpleNamespace(stdout=io.BytesIO(driver["json"].dumps(message).encode() + b"\n"))
        try:
            server.call_result(1)
        except driver["Unusable"] as error:
            assert why in str(error), error
        else:
            raise AssertionError("no fault is found in %r" % (message,))


def check_texts(driver):
    """Half an emoji, as `text[:80]` may leave it, is no UTF-8 and costs no row."""
    utf8 = driver["utf8"]
    assert utf8("a\ud83d") == "a\ufffd".encode()
    assert utf8("\ud83d\ude00 \ude00\u00e9\0") == "\U0001f600 \ufffd\u00e9\0".encode()


with tempfile.TemporaryDirectory() as folder:
    driver = load_driver(sys.argv[1])
    check_texts(driver)
    check_lists(driver, folder)
    check_answers(driver)
    check(driver, folder)
