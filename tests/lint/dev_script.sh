# dev_script.sh ROOT: tests ./dev without the network: syntax of its scripts, wrong commands, a missing package without
# root, the stamps of finished folders, and the atomic swap of a folder.
set -euo pipefail
cd "$1"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
num_wrong=0
expect() {  # expect CODE TEXT COMMAND...
  local code=$1 text=$2 out status=0
  shift 2
  out=$("$@" 2>&1) || status=$?
  if [[ $status -ne $code ]] || ! grep -qF -- "$text" <<<"$out"; then
    printf 'expected exit %s and "%s" of: %s\ngot %s and:\n%s\n' "$code" "$text" "$*" "$status" "$out"
    num_wrong=$((num_wrong + 1))
  fi
}
for script in dev .ci/run apps/dev/*.sh tests/lint/*.sh; do expect 0 "" bash -n "$script"; done
expect 0 "usage: ./dev COMMAND" ./dev
expect 2 "unknown command 'nosuch'" ./dev nosuch
expect 2 "test takes no '--nosuch'" ./dev test --nosuch
expect 2 "test has no preset 'nosuch'" ./dev test --only a --preset nosuch
expect 2 "--preset belongs to --only" ./dev test --preset asan
expect 2 "--servers chooses the tests" ./dev test --servers --quick
expect 2 "--bundle belongs to --device" ./dev test --bundle nosuch
expect 2 "nosuch has no tests/device_tests" ./dev test --device cpu-as-device kernels --bundle nosuch
expect 2 "bundle takes no '--nosuch'" ./dev bundle --nosuch
expect 2 "no preset 'nosuch'" ./dev build --preset nosuch
expect 2 "test takes no 'nosuch'" ./dev test --device cuda:1 kernels nosuch
if [[ $(ldconfig -p) != *libcuda.so.1* ]]; then expect 13 "no NVIDIA driver was found" ./dev test --device; fi

# A user without root on a machine that has none of the packages.
mkdir "$scratch/bin"
printf '#!/bin/sh\nexit 1\n' >"$scratch/bin/dpkg-query"
printf '#!/bin/sh\necho 1000\n' >"$scratch/bin/id"
printf '#!/bin/sh\necho "apt-get must not run" >&2\nexit 1\n' >"$scratch/bin/apt-get"
chmod +x "$scratch/bin/"*
expect 10 "sudo apt-get install -y --no-install-recommends ca-certificates g++" env PATH="$scratch/bin:$PATH" ./dev build

export MORTISE_CACHE=$scratch/cache MORTISE_DEPS_DIR=$scratch/cache/deps
expect 0 "stamps work" bash -c '
  source apps/dev/lib.sh
  mkdir -p "$MORTISE_CACHE"/{new,dir}
  stamp=$(stamp_of apps/dev/torch_requirements.txt)
  ! is_current "$MORTISE_CACHE/dir" "$stamp"
  echo "$stamp" >"$MORTISE_CACHE/new/.stamp"
  touch "$MORTISE_CACHE/dir/old"
  put_in_place "$MORTISE_CACHE/new" "$MORTISE_CACHE/dir"
  is_current "$MORTISE_CACHE/dir" "$stamp"
  ! is_current "$MORTISE_CACHE/dir" "$(stamp_of apps/dev/apt_packages.txt)"
  [[ ! -e $MORTISE_CACHE/dir/old && $(ls -A "$MORTISE_CACHE") == dir ]]
  echo "stamps work"'
[[ $num_wrong -eq 0 ]]
