#!/bin/bash
# new_loss.sh SOURCE_DIR BUILD_DIR TASK: adds the loss that CONTRIBUTING.md shows to a copy of this tree, and nothing else;
# builds the copy's pack, and trains with the loss by its name. The copy goes without the other losses, which would only
# take time to compile. Counts the files that the loss took.
set -euo pipefail
source_dir=$1 build_dir=$2 task=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "new_loss.sh: $*" >&2; exit 1; }
quietly() { "$@" >"$scratch/log" 2>&1 || fail "$*: $(tail -n 30 "$scratch/log")"; }

copy=$scratch/tree
mkdir "$copy"
cp -r "$source_dir"/{CMakeLists.txt,cmake,core,plugins,sdk} "$copy/"
find "$copy/plugins/policy_loss" -name '*.cpp' ! -name pack.cpp -delete

loss=$scratch/loss.cpp
awk '/^## / { mine = $0 == "## A new built-in loss" } mine && /^```cpp$/ { on = 1; next } /^```/ { on = 0 } on' \
  "$source_dir/CONTRIBUTING.md" >"$loss"
lines=$(wc -l <"$loss")
[[ $lines -ge 20 && $lines -le 40 ]] || fail "the loss of CONTRIBUTING.md has $lines lines (about 30)"
file=$(sed -nE '1s|^// (plugins/policy_loss/[a-z_]+\.cpp): .*|\1|p' "$loss")
name=$(sed -nE 's/^MORTISE_TOKEN_LOSS\("([a-z_]+)".*/\1/p' "$loss")
[[ -n $file && -n $name ]] || fail "the loss of CONTRIBUTING.md does not begin with its file's name, or has no plugin"
[[ ! -e $source_dir/$file ]] || fail "$file is there already"
cp "$loss" "$copy/$file"

touched=$(for part in CMakeLists.txt cmake core plugins sdk; do
  diff -rq "$source_dir/$part" "$copy/$part" || true
done | grep -vc "^Only in $source_dir/plugins/policy_loss:" || true)
[[ $touched == 1 ]] || fail "the loss took $touched files"

quietly cmake -S "$copy" -B "$copy/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DMORTISE_TORCH=OFF -DMORTISE_TESTS=OFF \
  -DMORTISE_APPS=OFF -DMORTISE_ROOMS=foundation
quietly cmake --build "$copy/build" --target mortise.policy_loss
# The program next to this pack and the packs of the other kinds, as in an installation.
mkdir -p "$copy/build/bin"
cp "$build_dir"/bin/mortise "$build_dir"/bin/mortise-engine "$build_dir"/bin/mortise-worker "$copy/build/bin/"
cp "$build_dir"/lib/mortise/*.so "$copy/build/lib/mortise/"
find "$build_dir/lib/mortise/packs" -name '*.so' ! -name mortise.policy_loss.so -exec cp {} "$copy/build/lib/mortise/packs/" \;
mortise=$copy/build/bin/mortise

quietly "$mortise" plugin describe "$name"
# Its own edge case against another file's loss, bit for bit at the level that an unoptimised build has.
inputs=("$source_dir"/tests/golden/tensors/policy_loss.vanilla.*.safetensors)
quietly "$mortise" plugin eval policy_loss "$name" --inputs "${inputs[0]}" --outputs "$scratch/new" --set clip_ratio=0.2 --set rollback=0
MORTISE_SDK_CPU=baseline quietly "$build_dir/bin/mortise" plugin eval policy_loss vanilla --inputs "${inputs[0]}" \
  --outputs "$scratch/ppo" --set clip_ratio=0.2 --set clip_ratio_c=0
cmp "$scratch/new" "$scratch/ppo" || fail "$name without its rollback is not PPO"
quietly "$mortise" plugin eval policy_loss "$name" --inputs "${inputs[0]}" --outputs "$scratch/new" --set clip_ratio=0.01
cmp -s "$scratch/new" "$scratch/ppo" && fail "$name ignores its parameters"

quietly "$mortise" train "$task/run.toml" model.path="$task/model" data.train_files="$task/data/train.jsonl" \
  trainer.default_local_dir="$scratch/out" trainer.num_threads=1 reward.0.use=exact_match reward.0.column=answer \
  actor.policy_loss.loss_mode="$name"
grep -q '"actor/pg_clipfrac":' "$scratch/out/metrics.jsonl" || fail "the loss's metric did not arrive"
echo "new loss: $name in $lines lines took $touched file"
