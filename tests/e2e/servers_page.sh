#!/bin/bash
# servers_page.sh PAGE BUILD_DIR: runs the ```sh servers blocks of docs/servers.md in order and as they stand, in a folder
# with a model, data and a short run. The page says that the trainer with a server and the one without have the same bits.
set -euo pipefail
page=$1 build_dir=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "servers_page.sh: $*" >&2; exit 1; }
cd "$scratch"
"$build_dir/bin/make_task" . --seed 3 >log 2>&1 || fail "no task: $(cat log)"
cat >run.toml <<'END'
[model]
path = "model"
[data]
train_files = ["data/train.jsonl"]
train_batch_size = 8
max_prompt_length = 8
max_response_length = 3
[actor]
ppo_mini_batch_size = 4
[actor.optim]
lr = 2e-3
[rollout]
n = 4
temperature = 0.9
top_k = 20
[[reward]]
use = "regex"
pattern = "^7"
[trainer]
total_training_steps = 3
val_before_train = false
num_threads = 1
END
awk '/^```sh servers$/ { on = 1; next } /^```/ { on = 0 } on' "$page" >servers.sh
[[ $(grep -c . servers.sh) -ge 8 ]] || fail "the page has too few commands"
export PATH="$build_dir/bin:$PATH" no_proxy=127.0.0.1 OMP_NUM_THREADS=1
timeout 120 bash -euxo pipefail servers.sh >log 2>&1 || fail "a command failed: $(tail -n 30 log)"
[[ $(wc -l <with_server/updates.jsonl) == 6 ]] || fail "not six updates: $(cat with_server/updates.jsonl)"
grep -q '"training/rollout_probs_diff_max"' with_server/metrics.jsonl || fail "the server's log-probs were not used"
# The trainer removes its weights. Those of other trainers, which still run, are none of ours.
for folder in /dev/shm/mortise-weights-*; do
  pid=${folder#/dev/shm/mortise-weights-}
  [[ ! -d $folder ]] || kill -0 "${pid%%-*}" 2>/dev/null || fail "weights were left in $folder"
done
