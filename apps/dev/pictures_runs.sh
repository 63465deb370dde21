# pictures_runs.sh PROGRAM SOURCE: the runs that ./dev pictures draws, into runs/pictures/NAME. A finished run is kept.
# They are short, so that all of them take about ten minutes on two cores. They need the warm start of the quickstart.
set -euo pipefail
program=$1
export OMP_WAIT_POLICY=passive
# train NAME FILE [OVERRIDE...]
train() {
  local name=$1 file=$2
  shift 2
  [[ -f runs/pictures/$name/finished ]] && return
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
train recipe_distill configs/distill.toml trainer.total_training_steps=60 trainer.test_freq=10 \
  teacher.path="runs/pictures/seed_1/global_step_300/huggingface"
train recipe_tools configs/tools.toml
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
