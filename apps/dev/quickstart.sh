# ./dev quickstart [--seeds N] [--seed N]: trains a tiny language model with GRPO on the CPU until it adds.
#   1. makes the task: pairs of two-digit numbers, a tokenizer, an untrained model (runs/quickstart/{data,init})
#   2. mortise sft   configs/quickstart_sft.toml   until about a third of the validation sums are right
#   3. mortise train configs/quickstart.toml       GRPO with the reward plugin exact_match
# It builds each part just before it is needed: the program with what validation calls, the packs of GRPO after the warm start,
# and the other built-in packs at the end.
# --seed N uses another seed. --seeds N does all of it for the seeds 1 .. N and prints a table.
source apps/dev/lib.sh
seeds=() default_seed=42
while [[ $# -gt 0 ]]; do
  case $1 in
    --seeds) mapfile -t seeds < <(seq 1 "${2:?"--seeds needs a number"}"); shift 2 ;;
    --seed) default_seed=${2:?"--seed needs a number"}; shift 2 ;;
    -h | --help) sed -n '/^source/q; s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die $exit_usage "quickstart takes no '$1'" ;;
  esac
done
need_apt build
need_torch
# build_part NAME TARGET...
build_part() {
  local log
  log=$(log_file "quickstart-build-$1")
  shift
  build release "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
}
say "building the program, the rewards and the sampler"
build_part program mortise make_task mortise.reward mortise.rollout
bin=build/release/bin
metric='val-core/addition/reward/mean@1'

# last_value FILE: the newest value of the validation metric in a metrics.jsonl.
last_value() { grep -o "\"$metric\":[0-9.e-]*" "$1" | tail -n 1 | cut -d: -f2; }

# run_seed SEED: runs all three parts from scratch, and prints its progress.
run_seed() {
  local seed=$1 dir=runs/quickstart began=$SECONDS warm final
  rm -rf "$dir"
  say "1/3 making the task (seed $seed)"
  mkdir -p "$dir"
  $bin/make_task "$dir" --seed "$seed"
  mv "$dir/model" "$dir/init"
  say "2/3 warm start: mortise sft configs/quickstart_sft.toml"
  $bin/mortise sft configs/quickstart_sft.toml trainer.seed="$seed"
  warm=$(last_value "$dir/warm_run/metrics.jsonl")
  cp -r "$dir/warm_run/$(<"$dir/warm_run/latest")/huggingface" "$dir/warm"
  local pause=$SECONDS
  build_part grpo mortise.policy_loss mortise.kl_estimator mortise.advantage_estimator
  began=$((began + SECONDS - pause))  # the table shows what the runs took
  say "3/3 learning by GRPO: mortise train configs/quickstart.toml"
  local train=("$bin/mortise" train configs/quickstart.toml "trainer.seed=$seed" "trainer.default_local_dir=$dir/train"
    "trainer.validation_data_dir=$dir/train/validation")
  local code=0
  "${train[@]}" || code=$?
  # A new ./dev quickstart removes the run.
  [[ $code -ne 8 ]] || say "to resume it: ${train[*]}"
  [[ $code -eq 0 ]] || exit "$code"
  final=$(last_value "$dir/train/metrics.jsonl")
  results+="$(printf '  %4s   %.3f   %.3f   %d s' "$seed" "$warm" "$final" $((SECONDS - began)))"$'\n'
}

results=
for seed in "${seeds[@]:-$default_seed}"; do run_seed "$seed"; done
say "building the other built-in packs"
build_part packs packs show_completions

dir=runs/quickstart
last=$(ls "$dir/train/validation" | sort -n | tail -n 1)
echo
echo "Validation pairs, never trained on:"
$bin/show_completions "$dir/train/validation/0.jsonl" "$dir/train/validation/$last" 6
echo
echo "  seed   after warm start   after GRPO   time" | sed 's/after warm start/ warm /; s/after GRPO/ GRPO /'
printf '%s' "$results"
echo
echo "Written:"
echo "  $dir/data/                         the task: sft, train and val pairs"
echo "  $dir/warm/                         the warm-started model, a Hugging Face folder"
echo "  $dir/train/metrics.jsonl           every metric of every step (updates.jsonl: of every update)"
echo "  $dir/train/$(<"$dir/train/latest")/huggingface/  the trained model"
echo "  TensorBoard: tensorboard --logdir $dir/train"
echo
echo "Next, the same with another loss:"
echo "  $bin/mortise train configs/quickstart.toml actor.policy_loss.loss_mode=gspo"
echo "  $bin/mortise plugin list"
