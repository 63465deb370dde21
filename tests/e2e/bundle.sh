#!/bin/bash
# bundle.sh SOURCE BUILD_DIR: what ./dev bundle makes trains in a file system that has glibc, libtorch and nothing else.
set -euo pipefail
source_dir=$1 build_dir=$2
scratch=$(mktemp -d)
trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
fail() { echo "bundle.sh: $*" >&2; exit 1; }
expect() { grep -qF -- "$1" "$scratch/log" || fail "the output has no '$1': $(cat "$scratch/log")"; }

# A machine of a user may lack these. Where CI=true, they must be there.
skip() { [[ ${CI:-} == true ]] && fail "$*"; echo "skipped: $*"; exit 77; }
bwrap --unshare-all --ro-bind / / true 2>"$scratch/log" || skip "bubblewrap makes no file system here: $(cat "$scratch/log")"
for program in patchelf xz; do command -v "$program" >/dev/null || skip "there is no $program on this machine"; done
(cd "$source_dir" && ./dev bundle --no-build --no-archive --without-libtorch --output "$scratch/a folder") >"$scratch/log" 2>&1 ||
  fail "no bundle: $(cat "$scratch/log")"
mv "$scratch/a folder"/mortise-*-linux-x86_64 "$scratch/mortise"
libtorch=$(ldd "$build_dir/bin/mortise-engine" | sed -nE 's/.*libtorch_cpu.so => (.*)\/torch\/lib\/libtorch_cpu.so .*/\1/p')

"$scratch/mortise/use_libtorch" "$scratch" >"$scratch/log" 2>&1 && fail "a folder without libtorch was taken"
expect "has no torch/lib/libtorch_cpu.so"
mkdir -p "$scratch/older/torch"
ln -s "$libtorch/torch/lib" "$scratch/older/torch/lib"
echo "__version__ = '2.10.0+cu130'" >"$scratch/older/torch/version.py"
"$scratch/mortise/use_libtorch" "$scratch/older" >"$scratch/log" 2>&1 && fail "an older libtorch was taken"
expect "has PyTorch 2.10.0, and this bundle was built for"
"$scratch/mortise/use_libtorch" "$libtorch" >"$scratch/log" 2>&1 || fail "$(cat "$scratch/log")"
mkdir -p "$scratch/broken/torch/lib"
cp "$libtorch/torch/version.py" "$scratch/broken/torch/"
touch "$scratch/broken/torch/lib/libtorch_cpu.so"
"$scratch/mortise/use_libtorch" "$scratch/broken" >"$scratch/log" 2>&1 && fail "an empty libtorch was taken"
expect "do not start with the libtorch of"
"$scratch/mortise/use_libtorch" "$scratch/mortise/lib/python/" >"$scratch/log" 2>&1 && fail "the bundle was taken"
expect "is in the bundle itself"

"$build_dir/bin/make_task" "$scratch/task" --tiny >"$scratch/log" 2>&1 || fail "$(cat "$scratch/log")"
cat >"$scratch/task/run.toml" <<'TOML'
model.path = "model"
data = {train_files = ["data/train.jsonl"], train_batch_size = 4, max_prompt_length = 16, max_response_length = 4}
actor.ppo_mini_batch_size = 4
reward = [{use = "exact_match", column = "answer"}]
trainer = {total_training_steps = 1, val_before_train = false, default_local_dir = "out"}
TOML
libraries=()
for name in libc libm libpthread libdl librt libresolv libutil; do
  for file in /lib/x86_64-linux-gnu/"$name".so.*; do libraries+=(--ro-bind "$(readlink -f "$file")" "/lib/x86_64-linux-gnu/${file##*/}"); done
done
in_bundle() {  # PROGRAM WORDS...: in a file system of its own
  bwrap --unshare-all --die-with-parent --clearenv --proc /proc --dev /dev --tmpfs /tmp "${libraries[@]}" \
    --ro-bind "$(readlink -f /lib64/ld-linux-x86-64.so.2)" /lib64/ld-linux-x86-64.so.2 --ro-bind "$libtorch" "$libtorch" \
    --ro-bind "$scratch/mortise" /opt/mortise --bind "$scratch/task" /task --chdir /task -- "/opt/mortise/bin/$1" "${@:2}" >"$scratch/log" 2>&1
}
works() { in_bundle "$@" || fail "$* failed: $(cat "$scratch/log")"; }
works mortise plugin list
expect /opt/mortise/lib/mortise/packs/mortise.policy_loss.so
works mortise train run.toml plugins.isolation=process
expect workers
in_bundle mortise-fetch && fail "mortise-fetch takes no words"
expect "usage: mortise-fetch"
