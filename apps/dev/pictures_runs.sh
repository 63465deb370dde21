# pictures_runs.sh PROGRAM RUN...: trains those of the runs of ./dev pictures that are named, into runs/pictures/RUN. A
# finished run is kept. They are short and need the tasks and warm starts that pictures.sh makes.
set -euo pipefail
program=$1
named=" ${*:2} "
export OMP_WAIT_POLICY=passive
# train NAME FILE [OVERRIDE...]
train() {
  local name=$1 file=$2
  shift 2
  [[ $named == *" $name "* && ! -f runs/pictures/$name/finished ]] || return 0
  rm -rf "runs/pictures/$name"
  echo "== run $name"
  "$program" train "$file" "$@" trainer.default_local_dir="runs/pictures/$name" trainer.validation_data_dir=null \
    >"runs/pictures/$name.log" 2>&1 || { tail -n 20 "runs/pictures/$name.log" >&2; exit 1; }
  touch "runs/pictures/$name/finished"
}

for seed in 1 2 3; do
  train "seed_$seed" configs/quickstart.toml trainer.seed="$seed" trainer.total_training_steps=300 trainer.test_freq=20
done
for recipe in gspo dapo dr_grpo ppo; do
  train "recipe_$recipe" "configs/$recipe.toml" trainer.total_training_steps=60 trainer.test_freq=10
done
train recipe_bfloat16 configs/bfloat16.toml trainer.test_freq=10
train recipe_distill configs/distill.toml trainer.total_training_steps=60 trainer.test_freq=10 \
  teacher.path="runs/pictures/seed_1/global_step_300/huggingface"
train recipe_tools configs/tools.toml
train recipe_search configs/search.toml
train recipe_chord configs/chord.toml trainer.test_freq=20
train chord_grpo configs/chord.toml trainer.test_freq=20 sft_mix.files=[]
train chord_examples configs/chord.toml trainer.test_freq=20 sft_mix.mu_peak=1 sft_mix.mu_valley=1
# three RECIPE [OVERRIDE...]: the recipe with three seeds.
three() {
  local name=$1 seed
  shift
  for seed in 1 2 3; do train "recipe_${name}_$seed" "configs/$name.toml" "$@" trainer.seed="$seed"; done
}
for recipe in lora frozen over_sampling replay_buffer curriculum game experts; do three $recipe trainer.test_freq=10; done
three validation_sets trainer.save_freq=-1 trainer.metric_for_best_model=null
three reward_model trainer.total_training_steps=60 trainer.test_freq=10 reward.1.model=runs/pictures/reward_model
# One change at a time. A fourth of the quickstart's completions make these runs short, and need a lower learning rate.
small=(rollout.n=4 trainer.total_training_steps=100 trainer.test_freq=10)
base_lr=actor.optim.lr=1e-4
train base configs/quickstart.toml "${small[@]}" $base_lr
for lr in 2e-5 4e-4 4e-3; do train "lr_$lr" configs/quickstart.toml "${small[@]}" actor.optim.lr="$lr"; done
for n in 2 16; do train "n_$n" configs/quickstart.toml "${small[@]}" $base_lr rollout.n="$n"; done
for clip in 0.02 0.2 0.8; do
  train "clip_$clip" configs/quickstart.toml "${small[@]}" $base_lr actor.ppo_mini_batch_size=16 actor.clip_ratio="$clip"
done
for kl in 0.01 0.3; do
  train "kl_$kl" configs/quickstart.toml "${small[@]}" $base_lr actor.use_kl_loss=true actor.kl_loss_coef="$kl"
done
