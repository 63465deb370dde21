#!/bin/bash
# sdk_prefix.sh BUILD_DIR PREFIX: the installation that an author has: SDK, built-in packs, the program; and in
# PREFIX/task a small task for training. Shared by the tests that build out of the tree.
set -euo pipefail
build_dir=$1 prefix=$2
rm -rf "$prefix"
cmake --install "$build_dir" --prefix "$prefix" --component sdk >/dev/null
cmake --install "$build_dir" --prefix "$prefix" --component packs >/dev/null
[[ -x $build_dir/bin/mortise ]] || exit 0
cmake --install "$build_dir" --prefix "$prefix" --component programs >/dev/null
cp "$build_dir/bin/make_task" "$prefix/bin/"
"$prefix/bin/make_task" "$prefix/task" --seed 3 >/dev/null
cat >"$prefix/task/run.toml" <<'TOML'
[model]
path = "model"
[data]
train_files = ["data/train.jsonl"]
train_batch_size = 8
max_prompt_length = 8
max_response_length = 4
[actor]
ppo_mini_batch_size = 4
[rollout]
n = 4
[trainer]
total_training_steps = 2
TOML
