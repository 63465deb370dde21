"""The GPU of this machine, and what tests or benchmarks said of it as JSON. Needs the standard library alone.

  device_report.py ask DEVICE             says which GPU it is; without a usable driver it says why and ends with code 13
  device_report.py tests PART --device DEVICE --log FILE [--google FILE ...] --wall-s N [--status N] --out FILE [--measured DIR]
  device_report.py lines PART ...         the same for a program that prints one JSON object a line into the log

DEVICE is cuda, cuda:N or cpu-as-device. The report has the device, versions, and the cases or lines. On a GPU it is also written to
DIR, to be committed.
"""
import argparse
import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

NO_DEVICE = 13  # docs/exit_codes.md


def end(text):
    print(f"./dev: {text}", file=sys.stderr)
    sys.exit(NO_DEVICE)


def gpu_facts(device, library="libcuda.so.1"):
    """Name, memory and driver of a GPU, by the driver alone: no build is needed."""
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        end(f"no NVIDIA driver was found ({error}), so there is no GPU to use. cpu-as-device in its place runs the code of a GPU on the CPU")
    version, count, handle, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    index = int(device.partition(":")[2] or 0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code != 0:
        end(f"the NVIDIA driver cannot be used (error {code}); check nvidia-smi")
    if index >= count.value:
        end(f"there is no GPU number {index}: the driver sees {count.value}, counted from 0")
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetName(name, len(name) - 1, handle)
    driver.cuDeviceTotalMem_v2(ctypes.byref(size), handle)
    return {"name": name.value.decode(), "memory_bytes": size.value, "driver_supports_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}"}


def first_match(pattern, command):
    try:
        found = re.search(pattern, subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    except OSError:
        return None
    return found[1] if found else None


def versions():
    torch = re.search(r"^torch==([0-9.]+)", (Path(__file__).parent / "torch_requirements.txt").read_text(), re.MULTILINE)
    own = first_match(r"(\S+)", ["git", "describe", "--always", "--dirty"])
    return {"mortise": own, "libtorch": torch and torch[1],
            "nvcc": first_match(r"release ([0-9.]+)", ["nvcc", "--version"])}


def cases_of(paths):
    """Counts of the cases of GoogleTest's reports, what failed or was skipped and why, and the ten slowest. A program whose report is
    missing died: that is a failure."""
    out = {"passed": 0, "failed": [], "skipped": [], "slowest": []}
    slow = []
    for path in paths:
        if not path.exists():
            out["failed"].append({"case": path.stem, "text": "the program died before its report"})
            continue
        for suite in json.loads(path.read_text())["testsuites"]:
            for case in suite["testsuite"]:
                name = f"{suite['name']}.{case['name']}"
                slow.append((float(case["time"].removesuffix("s")), name))
                if "failures" in case:
                    out["failed"].append({"case": name, "text": "\n".join(one["failure"] for one in case["failures"])[:2000]})
                elif case.get("result") == "SKIPPED":
                    out["skipped"].append({"case": name, "text": "\n".join(one["message"] for one in case.get("skipped", []))[:500]})
                elif case.get("result") == "COMPLETED":
                    out["passed"] += 1
    out["slowest"] = [{"case": name, "seconds": seconds} for seconds, name in sorted(slow, reverse=True)[:10]]
    return out


def objects_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def report(args):
    is_gpu = args.device.startswith("cuda")
    text = args.log.read_text(errors="replace") if args.log.exists() else ""
    out = {"part": args.part, "place": args.device, "device": gpu_facts(args.device) if is_gpu else "the CPU, with the code of a GPU",
           "versions": versions(), "wall_s": args.wall_s}
    out |= {"lines": objects_of(text)} if args.what == "lines" else cases_of(args.google)
    if args.status != 0 and not out.get("failed"):  # it died after its report, or printed only some of its lines
        out.setdefault("failed", []).append({"case": args.part, "text": f"a program ended with code {args.status}"})
    written = [args.out]
    if is_gpu and args.measured:
        written.append(args.measured / f"{args.out.name}")
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(out, indent=1) + "\n")
    if args.what == "tests":
        print(f"{args.part}: {out['passed']} passed, {len(out['failed'])} failed, {len(out['skipped'])} skipped in {args.wall_s} s; {written[-1]}")
        for kind in ("failed", "skipped"):
            for case in out[kind]:
                print(f"  {kind}: {case['case']} ({(case['text'].splitlines() or [''])[0][:200]})")
        return 1 if out["failed"] or out["passed"] == 0 else 0
    print(f"{args.part}: {len(out['lines'])} lines in {written[-1]}")
    return 0 if out["lines"] and args.status == 0 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ask", "tests", "lines"])
    parser.add_argument("part", metavar="PART or DEVICE")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--google", type=Path, nargs="*", default=[], help="reports of GoogleTest programs (--gtest_output=json:FILE)")
    parser.add_argument("--wall-s", type=int, default=0)
    parser.add_argument("--status", type=int, default=0, help="the worst exit code of the programs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--driver", default="libcuda.so.1", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.what != "ask":
        return report(args)
    if args.part.startswith("cuda"):
        facts = gpu_facts(args.part, args.driver)
        print(f"== {facts['name']} with {facts['memory_bytes'] / 2**30:.0f} GiB; the driver supports CUDA {facts['driver_supports_cuda']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
