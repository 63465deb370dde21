# Compares the JSON schemas that the environment `python` makes of tools with transformers' get_json_schema.
# tool_schema_oracle.py SOURCE_DIR; run with a Python that has transformers. Prints what differs, and exits with 1.
import json
import socket
import struct
import subprocess
import sys
import tempfile

TOOLS = '''
from typing import Any, Dict, List, Literal, Optional, Tuple, Union


def plain(expression: str, digits: int = 3, exact: bool = False) -> float:
    """
    Evaluates an expression.

    Args:
        expression: what to compute, as
            a calculator writes it
        digits: digits of the result
        exact: no rounding (choices: [true, false])

    Returns:
        The value of the expression.
    """


def nested(a: list[int], b: dict[str, float], c: Dict[str, List[bool]], d: tuple[int, str], e: List[Optional[int]]):
    """Takes containers.

    Args:
        a: numbers
        b: weights
        c: flags
        d: a pair
        e: numbers, or nothing
    """


def unions(a: Optional[str], b: Union[int, str], c: Union[int, list[int], None], d: Any, e: Literal["x", "y"] = "x") -> str:
    """Takes one of several.

    Args:
        a: perhaps a text
        b: a number or a text
        c: a number or numbers
        d: anything
        e: a letter
    """


def nothing() -> None:
    """Does nothing."""
'''


def ours(source, path, names):
    program = open(source + "/plugins/shared/python_base.py").read() + "\n"
    for part in ("verl_tools.py", "python_turns_driver.py"):
        program += open(source + "/plugins/environment/python/" + part).read()
    here, there = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, "-c", "import os; os.dup2(%d, 3); exec(__import__('sys').argv[1])" % there.fileno(), program],
        pass_fds=[there.fileno()],
    )
    there.close()
    settings = json.dumps({"tools": [path + ":" + name for name in names], "class": "", "kwargs": {}}).encode()
    here.sendall(struct.pack("<QQQ", len(settings), 0, 0) + settings)
    size = struct.unpack("<QQQ", here.recv(24, socket.MSG_WAITALL))[0]
    answer = json.loads(here.recv(size, socket.MSG_WAITALL))
    here.close()
    child.wait()
    assert "tools" in answer, answer
    return answer["tools"]


def main():
    from transformers.utils import get_json_schema

    names = ["plain", "nested", "unions", "nothing"]
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/tools.py"
        open(path, "w").write(TOOLS)
        module = {"__name__": "tools"}
        exec(TOOLS, module)
        different = 0
        for name, schema in zip(names, ours(sys.argv[1], path, names)):
            expected = get_json_schema(module[name])
            if schema != expected:
                different += 1
                print("%s\n  ours    %s\n  theirs  %s" % (name, json.dumps(schema), json.dumps(expected)))
        sys.exit(1 if different else 0)


main()
