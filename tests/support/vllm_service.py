# A real vLLM on the CPU, started as docs/servers.md says.
#   vllm_service.py PYTHON MODEL MAX_LENGTH LOGS_FOLDER
# Prints the port, and then obeys the lines of its standard input: start, kill (all processes, by SIGKILL), stop (the HTTP
# server takes connections and answers nothing), continue. LOGS_FOLDER/obeyed says how many lines it has obeyed. When the
# k-th vLLM ends, LOGS_FOLDER/vllmK.ended appears. When its standard input ends, vLLM ends too, whatever ended the test: the
# engine of vLLM outlives a killed HTTP server.
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

python, model, max_length, folder = sys.argv[1:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
settings = {
    "VLLM_SERVER_DEV_MODE": "1",  # has the calls that load new weights
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"),
}
command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1", "--port", str(port),
           "--dtype", "float32", "--enforce-eager", "--max-model-len", max_length, "--max-num-seqs", "64",
           "--enable-lora", "--max-lora-rank", "8"]
server = None
num_starts = 0


def start():
    global server, num_starts
    num_starts += 1
    with open(Path(folder) / f"vllm{num_starts}.txt", "w") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                  env={**os.environ, **settings})
    threading.Thread(target=watch, args=(server, Path(folder) / f"vllm{num_starts}.ended"), daemon=True).start()


def watch(process, ended):
    process.wait()
    ended.touch()


def shared_memory():
    """The shared memory of its processes, gigabytes that outlive a SIGKILL."""
    names = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if os.getpgid(int(maps.parent.name)) == server.pid:
                names |= set(re.findall(r"/dev/shm/(?:psm_|sem\.mp-)\S+", maps.read_text()))
        except (ProcessLookupError, PermissionError, FileNotFoundError):
            pass  # it has ended
    return names


def kill():
    global server
    if server is not None:
        names = shared_memory()
        try:
            os.killpg(server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all have ended
        server.wait()
        server = None
        for name in names:
            Path(name).unlink(missing_ok=True)


print(port, flush=True)
try:
    for num_obeyed, line in enumerate(sys.stdin, 1):
        {"start": start, "kill": kill, "stop": lambda: server.send_signal(signal.SIGSTOP),
         "continue": lambda: server.send_signal(signal.SIGCONT)}[line.strip()]()
        (Path(folder) / "obeyed").write_text(str(num_obeyed))
finally:
    kill()
