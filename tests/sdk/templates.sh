#!/bin/bash
# templates.sh LANG PREFIX TASK: does what an author does with `mortise plugin new KIND ID --lang LANG`, for every kind
# of LANG. PREFIX has an installed SDK, program and built-in packs, and nothing of the sources (sdk_prefix.sh). TASK is
# a small task for training. The script makes each project in a scratch folder, builds it against PREFIX, runs its own
# test, and trains two steps with all of them through [plugins] paths. `plugin check` tests each with other hosts; with
# MORTISE_LONG it runs all cases. Exits with 77 (skipped) if the language's tools are missing.
set -euo pipefail
lang=$1 prefix=$2 task=$3
mortise=$prefix/bin/mortise
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "templates.sh $lang: $*" >&2; exit 1; }
quietly() { "$@" >"$scratch/log" 2>&1 || fail "$*: $(tail -n 40 "$scratch/log")"; }

kinds=$(cd "$prefix/share/mortise/templates/$lang" && ls -d ./*/ | sed 's|[./]||g; /^common$/d')
[[ -n $kinds ]] || fail "there are no templates"
if [[ $lang == rust ]] && ! cargo --version >/dev/null 2>&1; then  # rustup may lack a toolchain
  echo "templates.sh rust: skipped: there is no cargo, which ./dev does not install (Debian: apt-get install cargo)"
  exit 77
fi
if [[ $lang == cuda ]] && ! nvcc --version >/dev/null 2>&1; then
  echo "templates.sh cuda: skipped: nvcc is not on the PATH (it comes with the CUDA toolkit)"
  exit 77
fi
# Every device that the template names, and nvcc's warnings as errors.
[[ $lang != cuda ]] || export CUDAFLAGS="-Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror"
cd "$scratch"

# build_cmake DIR: as the project's README says. Only the first kind's project is compiled with the optimizations that users
# get: the others differ in the plugin alone, and compile faster with fewer. MORTISE_LONG compiles all with all of them.
quick=()
build_cmake() {
  quietly cmake -S "$1" -B "$1/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" ${TORCH_DIR:+-DMORTISE_TORCH_DIR="$TORCH_DIR"} "${quick[@]}"
  quietly cmake --build "$1/build"
  quietly ctest --test-dir "$1/build" --output-on-failure --no-tests=error
  [[ -n ${MORTISE_LONG:-} ]] || quick=(-DCMAKE_{C,CXX,CUDA}_FLAGS_RELEASE="-O1 -DNDEBUG")
}
# build_make DIR: pkg-config and a C compiler.
build_make() { PKG_CONFIG_PATH=$pc quietly make -C "$1" CFLAGS="-O2 -Wall -Wextra -pedantic -Werror" test; }
pc=$(dirname "$(find "$prefix" -name mortise-sdk.pc)")

# device_code FILE: "KIND ARCHITECTURE" of each piece of device code (kind 1 is PTX, 2 is machine code). A container of them
# begins with 0xBA55ED50, the sizes of its header and content; each piece with its kind and the same sizes.
device_code() {
  objcopy -O binary --only-section=.nv_fatbin "$1" "$scratch/fatbin"
  od -An -v -tu4 -w4 "$scratch/fatbin" | awk '{ w[NR] = $1 } END {
    for (i = 1; i <= NR; ++i) {
      if (w[i] != 3126193488) continue
      end = i + (int(w[i + 1] / 65536) + w[i + 2]) / 4
      for (i += int(w[i + 1] / 65536) / 4; i < end; i += (w[i + 1] + w[i + 2]) / 4) print w[i] % 65536, w[i + 7]
      i = end - 1
    } }'
}
# No CUDA library comes along. There is code for A100 and H100, and PTX for newer devices.
check_device_code() {
  ! readelf -d "$1" | grep -E 'NEEDED.*(cuda|nv)' || fail "the pack needs a library of CUDA"
  device_code "$1" >"$scratch/code"
  for code in '2 80' '2 90' '1 90'; do
    grep -qx "$code" "$scratch/code" || fail "the pack lacks the device code '$code': $(cat "$scratch/code")"
  done
}

cases=(--only 'negotiation.*' --only 'environment.*')  # hosts that are older, newer, or have less to offer
[[ -z ${MORTISE_LONG:-} && $lang != cuda ]] || cases=()
paths=
for kind in $kinds; do
  dir=$scratch/$kind
  quietly "$mortise" plugin new "$kind" "acme.$lang-${kind//_/-}/my_$kind" --lang "$lang" --out "$dir"
  grep -rnE '@(ID|NAME|CRATE|CLASS|KIND|SDK)@' "$dir" && fail "words of the template are left in $dir"
  if [[ $lang == rust ]]; then
    (cd "$dir" && CARGO_TARGET_DIR=$scratch/target PATH="$prefix/bin:$PATH" quietly ./build.sh)
    (cd "$dir" && CARGO_TARGET_DIR=$scratch/target quietly cargo test --offline)
  else
    build_cmake "$dir"
  fi
  if [[ $lang == c ]]; then
    build_make "$dir"
    quietly "$mortise" plugin describe "my_$kind" --plugin "$dir/build/make/acme.c-${kind//_/-}.so"
  fi
  pack=$dir/build/lib/mortise/packs/acme.$lang-${kind//_/-}.so
  quietly "$mortise" plugin check "$pack" "${cases[@]}"
  [[ $lang != cuda ]] || check_device_code "$pack"
  if [[ $lang == c ]]; then
    PATH="$prefix/bin:$PATH" PKG_CONFIG_PATH=$pc quietly make -C "$dir" archive
    quietly "$mortise" pack inspect "$dir/build/make/acme.c-${kind//_/-}-0.1.0.mpack"
  fi
  # The last command of the README, as it stands, makes the archive that the README names.
  sed -n '/^To give the pack to somebody else/,$ s/^    //p' "$dir/README.md" >"$dir/archive.sh"
  [[ $(wc -l <"$dir/archive.sh") == 1 ]] || fail "the README of $kind has no command that makes an archive"
  (cd "$dir" && CARGO_TARGET_DIR=$scratch/target PATH="$prefix/bin:$PATH" quietly bash -e archive.sh)
  rm "$dir/archive.sh"
  archive=$(grep -oE 'build/[^`]+\.mpack' "$dir/README.md") || fail "the README of $kind names no archive"
  quietly "$mortise" pack inspect "$dir/$archive"
  grep -q "acme.$lang-${kind//_/-}@0.1.0" "$scratch/log" || fail "$archive is of another pack: $(cat "$scratch/log")"
  if [[ $lang == cuda ]]; then  # the toolkit's version goes from the note into the archive
    version=$(nvcc --version | grep -oE 'release [0-9]+[.][0-9]+' | cut -d' ' -f2)
    grep -qE "build .*, CUDA $version\$" "$scratch/log" || fail "$archive does not say CUDA $version: $(cat "$scratch/log")"
  fi
  paths+="\"$dir/build/lib/mortise/packs\", "
done

# A plugin may be called like a word of the language, of its library or of the SDK.
if [[ $lang == rust ]]; then
  quietly "$mortise" plugin new reward acme.match --lang rust --out "$scratch/match"
  (cd "$scratch/match" && CARGO_TARGET_DIR=$scratch/target quietly ./build.sh)
  for word in reward/row reward/result reward/option reward/raw policy_loss/dual policy_loss/meter; do
    dir=$scratch/words/${word#*/}
    quietly "$mortise" plugin new "${word%/*}" "acme.${word#*/}" --lang rust --out "$dir"
    (cd "$dir" && CARGO_TARGET_DIR=$scratch/target quietly cargo check --offline)
  done
fi

# A project is not written over another one.
first=${kinds%%[$'\n']*}
if "$mortise" plugin new "$first" acme.again --lang "$lang" --out "$scratch/$first" >"$scratch/log" 2>&1; then fail "overwrote a project"; fi
grep -q "the path exists and is not an empty folder" "$scratch/log" || fail "the reason is missing: $(cat "$scratch/log")"

# Two steps of training with all of them; the backend's random tokens in a run of their own, as its samples teach nothing.
settings=(trainer.total_training_steps=2 trainer.num_threads=1 actor.policy_loss.loss_mode=my_policy_loss)
if [[ $kinds == *kl_estimator* ]]; then
  settings+=(algorithm.adv_estimator=my_advantage_estimator actor.use_kl_loss=true actor.kl_loss_type=my_kl_estimator)
fi
cat >run.toml <<TOML
base = "$task/run.toml"
[plugins]
paths = [${paths%, }]
[[reward]]
$([[ $kinds == *reward* ]] && echo 'use = "my_reward"' || printf 'use = "exact_match"\ncolumn = "answer"')
TOML
train() { # OUT setting ...
  local out=$1
  shift
  quietly "$mortise" train run.toml model.path="$task/model" data.train_files="$task/data/train.jsonl" \
    trainer.default_local_dir="$scratch/$out" "$@"
  [[ $(wc -l <"$scratch/$out/metrics.jsonl") == 2 ]] || fail "$out: not two steps in metrics.jsonl"
}
train run "${settings[@]}"
grep -q '"critic/score/mean":' run/metrics.jsonl || fail "no rewards in the metrics"
grep -q '"actor/pg_clipfrac":' run/metrics.jsonl || fail "the loss's metric did not arrive"
if [[ $kinds == *rollout_backend* ]]; then
  grep -q '"actor/kl_loss":' run/metrics.jsonl || fail "no KL in the metrics"
  train random_run "${settings[@]}" rollout.name=my_rollout_backend rollout.my_rollout_backend.vocab_size=10
fi
echo "templates $lang: $(wc -w <<<"$kinds") projects made, built, tested and trained with"
