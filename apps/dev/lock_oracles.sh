# Writes tests/NAME.lock from tests/NAME_requirements.txt: every wheel with its hash. Run it by hand after you change a
# version:
#   bash apps/dev/lock_oracles.sh [oracles|vllm]
# A line "# alone: NAME==VERSION" locks this wheel without its dependencies.
source apps/dev/lib.sh
need_apt build test
name=${1:-oracles}
report=$(mktemp)
alone=$(mktemp -d)
trap 'rm -rf "$report" "$alone"' EXIT
"$system_python" -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --only-binary=:all: \
  --requirement "tests/${name}_requirements.txt" --target /nonexistent --report "$report"
for wheel in $(sed -n 's/^# alone: //p' "tests/${name}_requirements.txt"); do
  "$system_python" -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --only-binary=:all: --no-deps \
    "$wheel" --target /nonexistent --report "$alone/$wheel"
done
# triton compiles kernels for GPUs; what is locked here runs on the CPU and imports without it.
"$system_python" - "$report" "$alone" >"tests/$name.lock" <<'PY'
import json, pathlib, sys
rows = []
for path in [sys.argv[1], *pathlib.Path(sys.argv[2]).iterdir()]:
    for item in json.load(open(path))["install"]:
        name, version = item["metadata"]["name"].lower(), item["metadata"]["version"]
        if name != "triton":
            rows.append(f"{name}=={version} --hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}")
print("# Written by apps/dev/lock_oracles.sh for CPython 3.11 on x86_64. Tests only: nothing that is built uses these.")
print("\n".join(sorted(rows)))
PY
say "$(grep -c hash "tests/$name.lock") wheels locked in tests/$name.lock"
