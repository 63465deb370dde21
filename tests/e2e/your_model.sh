#!/bin/bash
# your_model.sh SOURCE BUILD_DIR: runs the ```sh blocks of docs/your_model.md in order, in a folder with what a reader
# has: a build at build/release, the script, a Qwen-shaped model folder and rows in GSM8K's form.
set -euo pipefail
source_dir=$1 build_dir=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "your_model.sh: $*" >&2; exit 1; }

mkdir -p "$scratch/build" "$scratch/apps" "$scratch/gsm8k"
ln -s "$build_dir" "$scratch/build/release"
cp -r "$source_dir/apps/data" "$scratch/apps/data"
model=$scratch/Qwen2.5-0.5B-Instruct
cp -r "$source_dir/tests/golden/replay/gspo/model" "$model"
chmod -R u+w "$model"
sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 2048/' "$model/config.json"
cat >"$model/chat_template.jinja" <<'TEMPLATE'
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
TEMPLATE
row() { printf '{"question": "Ann has %d pears and finds %d more. How many?", "answer": "%d+%d=<<%d>>%d.\\n#### 1,%03d"}\n' "$1" "$2" "$1" "$2" "$3" "$3" "$3"; }
for i in $(seq 1 40); do row "$i" 3 $((i + 3)); done >"$scratch/gsm8k/train.jsonl"
for i in $(seq 1 4); do row "$i" 5 $((i + 5)); done >"$scratch/gsm8k/test.jsonl"

awk '/^```sh$/ { on = 1; next } /^```/ { on = 0 } on' "$source_dir/docs/your_model.md" >"$scratch/commands.sh"
[[ $(grep -c . "$scratch/commands.sh") -ge 50 ]] || fail "the page has too few commands"
cd "$scratch"
bash -euo pipefail commands.sh >log 2>&1 || fail "a command of the page failed: $(tail -n 30 log)"

expect() { grep -qF -- "$2" "$1" || fail "$1 has no '$2': $(tail -n 40 "$1")"; }
expect data/train.jsonl '"answer": "1004"'
expect shown.jsonl '<|im_start|>user\nAnn has 1 pears'
expect scores.jsonl '"reward":1'
expect scores.jsonl '"reward":0'
expect log '# memory: about '
expect log '#   KV cache, at most '
expect log ' for each checkpoint; '
expect log '# policy loss gspo: clip_ratio_low 0.0003, clip_ratio_high 0.0004, loss_agg_mode seq-mean-token-mean'
expect log 'resumed from runs/gsm8k/global_step_2 after step 2'
[[ $(wc -l <runs/gsm8k/metrics.jsonl) == 3 ]] || fail "not three steps of training"
[[ $(wc -l <done.jsonl) == 2 ]] || fail "not two rows of completions"
# The numbers that the page says to watch are those of a run.
awk '/^## 5/ { on = 1 } /^## 6/ { on = 0 } on && /^\| `/ { split($0, part, "`"); print part[2] }' "$source_dir/docs/your_model.md" >watched
[[ $(wc -l <watched) -ge 5 ]] || fail "the page names too few numbers"
while read -r name; do expect runs/gsm8k/metrics.jsonl "\"$name\":"; done <watched
# The recipes for GSM8K: with their published sizes in a dry run, and two small steps of training. They name the same
# files as the page. A step of theirs has up to 256 prompts.
for i in $(seq 1 260); do row "$i" 4 $((i + 4)); done >gsm8k/train.jsonl
python3 apps/data/gsm8k_rows.py gsm8k/train.jsonl >data/train.jsonl
for recipe in gsm8k gsm8k_ppo; do
  "$build_dir/bin/mortise" train "$source_dir/configs/$recipe.toml" --dry-run >log 2>&1 || fail "$recipe: $(tail -n 30 log)"
  expect log '# memory: about '
  "$build_dir/bin/mortise" train "$source_dir/configs/$recipe.toml" trainer.total_training_steps=2 data.train_batch_size=4 \
    actor.ppo_mini_batch_size=4 data.max_response_length=8 trainer.default_local_dir="runs/recipe_$recipe" >log 2>&1 ||
    fail "$recipe: $(tail -n 30 log)"
  [[ $(grep -c '"actor/grad_norm":' "runs/recipe_$recipe/metrics.jsonl") == 2 ]] || fail "$recipe: not two steps"
  expect "runs/recipe_$recipe/metrics.jsonl" '"val-core/openai/gsm8k/reward/mean@1":'
done
expect runs/recipe_gsm8k/metrics.jsonl '"actor/kl_loss":'
expect runs/recipe_gsm8k_ppo/metrics.jsonl '"critic/vf_loss":'
# The script refuses a wrong file.
echo '{"prompt": "x"}' >wrong.jsonl
python3 apps/data/gsm8k_rows.py wrong.jsonl 2>wrong && fail "a file that is no GSM8K was taken"
expect wrong "row 1 is no row of GSM8K"
echo "your_model: all commands of the page ran"
