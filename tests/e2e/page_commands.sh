#!/bin/bash
# page_commands.sh SOURCE BUILD_DIR: runs the `mortise` commands of README.md and docs/ that no other test replays: blocks
# of code that have such a command, and table cells that are one. docs/cuda.md and the list `not_run` below are left out;
# any other command that does not run is a failure. They run in a folder with what a reader has: runs, a model, data
# rows, settings of other frameworks. A server takes a free port and is ended when it has said where it listens. An
# import may overwrite its file. Recipes of configs/ train as a dry run.
set -euo pipefail
source_dir=$1 build_dir=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "page_commands.sh: $*" >&2; exit 1; }

# These pages have a test of their own, or need what no machine of the tests has.
replayed_by_others=(docs/your_model.md docs/cookbook.md docs/guides/ docs/packs.md docs/plugins/quickstart.md)
need_a_gpu=(docs/cuda.md)
is_left_out() {
  local one
  for one in "${replayed_by_others[@]}" "${need_a_gpu[@]}"; do [[ $1 != "$one"* ]] || return 0; done
  return 1
}

# ---- what a reader has ----
home=$scratch/home
mkdir -p "$home/build/release/bin" "$home/models" "$home/runs"
cat >"$home/build/release/bin/mortise" <<WRAPPER
#!/bin/bash
set -euo pipefail
program=$build_dir/bin/mortise
case "\$1 \${2:-}" in
  "serve "*)
    rm -f served.log  # that of the server before
    "\$program" "\$@" --port 0 >served.log 2>&1 &
    for _ in {1..3000}; do
      if grep -qs 'http://127.0.0.1:' served.log; then kill -INT \$! && wait \$!; exit; fi
      sleep 0.1
    done
    cat served.log; kill \$!; exit 1 ;;
  "config import") exec "\$program" "\$@" --overwrite ;;
  "launch "*) [[ " \$* " != *" configs/"* ]] || set -- "\$@" --dry-run --resume never; exec "\$program" "\$@" ;;
  "train configs/"*) [[ " \$* " == *" --dry-run "* ]] || set -- "\$@" --dry-run; exec "\$program" "\$@" --resume never ;;
  *) exec "\$program" "\$@" ;;
esac
WRAPPER
chmod +x "$home/build/release/bin/mortise"
export PATH=$home/build/release/bin:$PATH OMP_WAIT_POLICY=passive
cd "$home"
cp -r "$source_dir/configs" configs
real() { "$build_dir/bin/$1" "${@:2}" >log 2>&1 || fail "$*: $(tail -n 20 log)"; }
real make_task runs/quickstart --seed 1
mv runs/quickstart/model runs/quickstart/warm
real make_tool_task runs/tools
mkdir -p runs/tools/train/global_step_30
mv runs/tools/model runs/tools/train/global_step_30/huggingface
cp -r runs/quickstart/warm DIR
cp -r "$source_dir/tests/golden/reward_model/model" models/my-reward-model
head -n 4 runs/quickstart/data/val.jsonl | sed 's/^{/{"completion": "7", /' | tee rows.jsonl >aime25.jsonl
cat >run.toml <<'RUN'
base = "configs/quickstart.toml"

[data]
train_batch_size = 4
val_files = "aime25.jsonl"

[actor]
ppo_mini_batch_size = 4

[rollout]
n = 4

[trainer]
total_training_steps = 2
test_freq = 2
save_freq = 2
metric_for_best_model = "val-core/addition/reward/mean@1"
default_local_dir = "runs/a"
validation_data_dir = "null"
rollout_data_dir = "runs/a/dump"
RUN
real mortise train run.toml
for run in b math; do real mortise train run.toml trainer.seed=7 "trainer.default_local_dir=runs/$run" "trainer.rollout_data_dir=null"; done
cp -r runs/b runs/addition
cp -r runs/b/global_step_2 runs/addition/global_step_1300
sed -i 's|default_local_dir = .*|default_local_dir = "runs/new"|; /^rollout_data_dir/d' run.toml
ln -s runs/a RUN
ln -s runs/a/global_step_2 PATH
printf 'model_name_or_path: DIR\nnum_generations: 8\nper_device_train_batch_size: 8\nmax_completion_length: 32\n' | tee grpo.yaml >FILE
cp "$source_dir/tests/golden/import/verl_ppo_trainer.yaml" ppo.yaml
echo 'swift rlhf --rlhf_type grpo --train_type full --model DIR --dataset rows.jsonl --reward_funcs format' \
  '--num_generations 8 --per_device_train_batch_size 8 --max_completion_length 32' >train.sh
echo 'python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=rows.jsonl data.train_batch_size=8' \
  'actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.model.path=DIR actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4' >run.sh

# ---- the commands of the pages ----
blocks() { # PAGE: the blocks without a language or of sh that have a command, without usage lines such as [--port N]
  awk '/^```/ { if (on) { if (has) printf "%s", text; on = 0 } else { on = /^```(sh|bash)?$/ ? 1 : 2; has = 0; text = "" } next }
       on == 1 { text = text $0 "\n"; if ($0 ~ /^(build\/release\/bin\/)?mortise / && $0 !~ /\[--/) has = 1 }' "$1"
}
cells() { grep -oE '\| `mortise [^`]*` *(\(\[[^)]*\)\) *)?\|' "$1" | grep -oE 'mortise [^`]*' | grep -E ' (RUN|PATH|FILE|[a-z_]+[/.][a-z_/.0-9]+|doctor|plugin list)( |$)' || true; }
every() { # PAGE: all lines of code and all table cells that begin with a command
  awk '/^ *```/ { on = !on; next } on && /^ *(\$ )?(build\/release\/bin\/)?mortise /' "$1"
  grep -oE '\| *`mortise [^`]*`' "$1" | sed -E 's/^\| *`//; s/`$//' || true
}
# Names of commands without their arguments, usage, and the example that servers_page.sh replays.
cat >not_run <<'LINES'
mortise generate
mortise model logprob
mortise plugin check
mortise plugin new KIND ID --lang
mortise serve
mortise serve --model DIR [--host ADDRESS] [--port N] [--api-key KEY] [--served-model-name NAME] [KEY=VALUE ...]
mortise serve --model model --port 0 > server.txt &
mortise train run.toml rollout.name=vllm rollout.vllm.url=$url trainer.default_local_dir=with_server
mortise train run.toml rollout.reuse_forward_mib=0 trainer.default_local_dir=alone
LINES
count=0
while read -r page; do
  ! is_left_out "$page" || continue
  { blocks "$source_dir/$page"; cells "$source_dir/$page"; } >commands
  while IFS= read -r line; do
    grep -qxF -- "$line" commands not_run || fail "$page: this test does not run '$line': make it run, or name it in not_run"
  done < <(every "$source_dir/$page")
  [[ -s commands ]] || continue
  rm -rf "$scratch/page"
  cp -r "$home" "$scratch/page"
  [[ $page != docs/checkpoints.md ]] || rm -rf "$scratch/page/DIR"  # the export writes it
  (cd "$scratch/page" && bash -euo pipefail -x commands >log 2>&1 </dev/null) ||
    fail "$page: a command failed: $(tail -n 20 "$scratch/page/log")"
  on_page=$(grep -cE '^(build/release/bin/)?mortise ' commands)
  echo "$page: $on_page commands"
  count=$((count + on_page))
done < <(cd "$source_dir" && echo README.md && find docs -name '*.md' | sort)
echo "page_commands: $count commands run"
[[ $count -ge 25 ]] || fail "only $count commands were found"
