# Writes tests/oracles.lock from tests/oracles_requirements.txt: every wheel with its hash. Run it by hand after you change
# a version:
#   bash apps/dev/lock_oracles.sh
source apps/dev/lib.sh
need_apt build test
report=$(mktemp)
trap 'rm -f "$report"' EXIT
"$system_python" -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --only-binary=:all: \
  --requirement tests/oracles_requirements.txt --target /nonexistent --report "$report"
# triton compiles kernels for GPUs; the oracles run on the CPU and import without it.
"$system_python" - "$report" >tests/oracles.lock <<'PY'
import json, sys
rows = []
for item in json.load(open(sys.argv[1]))["install"]:
    name, version = item["metadata"]["name"].lower(), item["metadata"]["version"]
    if name != "triton":
        rows.append(f"{name}=={version} --hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}")
print("# Written by apps/dev/lock_oracles.sh for CPython 3.11 on x86_64. Tests only: nothing that is built uses these.")
print("\n".join(sorted(rows)))
PY
say "$(grep -c hash tests/oracles.lock) wheels locked"
