"""Runs Python scripts one after another in one process, for tests whose scripts import the same large libraries.

Standard input is a socket. Each line of it has the path of a script, a tab, and the script's argument. The answer to it is a
line with the exit status.
"""
import os
import runpy
import sys
import traceback


def status_of(script: str, argument: str) -> int:
    sys.argv = [script, argument]
    sys.path.insert(0, os.path.dirname(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        del sys.path[0]
    return 0


os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks a server of the internet
for line in iter(sys.stdin.readline, ""):
    status = status_of(*line.rstrip("\n").split("\t"))
    sys.stdout.flush()
    os.write(0, f"{status}\n".encode())
