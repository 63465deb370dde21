# ./dev pictures [NAME...]: makes docs/pictures/ from real runs: the terminal, the report page, and the learning curves of the
# README, the cookbook and the guides. All of them take about half an hour on two cores. With names it makes only these
# pictures, with the runs that they need: ./dev pictures recipe_dapo choose_lr. --list prints the names. runs/pictures/
# keeps finished runs: remove it to run them again.
source apps/dev/lib.sh
case ${1:-} in -h | --help) sed -n '/^source/q; s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
need_apt build  # has Python, which reads the list
names=$("$system_python" apps/dev/picture_list.py)
mapfile -t all <<<"$names"
wanted=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --list) printf '%s\n' "${all[@]}"; exit 0 ;;
    *)
      [[ " ${all[*]} " == *" $1 "* ]] || die $exit_usage "there is no picture '$1'; './dev pictures --list' prints their names"
      wanted+=("$1")
      ;;
  esac
  shift
done
[[ ${#wanted[@]} -gt 0 ]] || wanted=("${all[@]}")
is_wanted() { [[ " ${wanted[*]} " == *" $1 "* ]]; }
runs=()
names=$("$system_python" apps/dev/picture_list.py --runs "${wanted[@]}")
[[ -z $names ]] || mapfile -t runs <<<"$names"
needs_run() { [[ " ${runs[*]} " == *" $1 "* ]]; }

need_apt test pictures
need_torch
venv=$MORTISE_CACHE/pictures
stamp=$(stamp_of apps/dev/pictures_requirements.txt)
if ! is_current "$venv" "$stamp"; then
  say "installing matplotlib and pyte into $venv"
  { "$system_python" -m venv --clear "$venv" &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement apps/dev/pictures_requirements.txt; } \
    >"$(log_file pictures-venv)" 2>&1 </dev/null ||
    die $exit_download "matplotlib could not be fetched: $(tail -n 5 "$(log_file pictures-venv)")"
  echo "$stamp" >"$venv/.stamp"
fi
log=$(log_file pictures-build)
say "building"
build release mortise make_task make_tool_task packs >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
bin=build/release/bin out=docs/pictures
mkdir -p runs/pictures "$out"

say "making the tasks and their warm starts"
if [[ ! -d runs/quickstart/warm ]]; then
  rm -rf runs/quickstart
  mkdir -p runs/quickstart
  $bin/make_task runs/quickstart --seed 42
  mv runs/quickstart/model runs/quickstart/init
  $bin/mortise sft configs/quickstart_sft.toml >"$(log_file pictures-sft)" 2>&1
  cp -r "runs/quickstart/warm_run/$(<runs/quickstart/warm_run/latest)/huggingface" runs/quickstart/warm
fi
# All curves start from the warm start of seed 42. `./dev quickstart --seed 7` leaves another one.
resolved=runs/quickstart/warm_run/config.resolved.toml
if [[ ${#runs[@]} -gt 0 || $(is_wanted terminal && echo yes) ]]; then
  [[ -f $resolved && $(sed -n '/^\[trainer\]/,/^\[/s/^seed = //p' $resolved) == 42 ]] ||
    die $exit_usage "runs/quickstart has no warm start with seed 42. Move that folder away and try again; the script then makes a new one"
fi
# warm_chats NAME STEPS [ARGUMENT...]: the task of configs/NAME.toml and its warm start.
warm_chats() {
  local name=$1 steps=$2
  shift 2
  needs_run "recipe_$name" && [[ ! -d runs/$name/warm/global_step_$steps ]] || return 0
  rm -rf "runs/$name"
  $bin/make_tool_task "runs/$name" "$@"
  $bin/mortise sft "configs/sft_$name.toml" >"$(log_file "pictures-sft-$name")" 2>&1
}
warm_chats tools 400
warm_chats search 800 --search
needs_runs_of() { [[ " ${runs[*]} " == *" recipe_$1_"[1-3]" "* ]]; }
if needs_runs_of game && [[ ! -d runs/game ]]; then $bin/make_tool_task runs/game; fi
if needs_runs_of experts && [[ ! -d runs/experts/warm/global_step_300 ]]; then
  rm -rf runs/experts
  $bin/make_task runs/experts --experts
  $bin/mortise sft configs/sft_experts.toml >"$(log_file pictures-sft-experts)" 2>&1
fi
if needs_runs_of curriculum; then
  grep -m 800 '"answer":"[0-9][0-9]"' runs/quickstart/data/train.jsonl >runs/quickstart/data/short.jsonl
  grep -m 800 '"answer":"1[0-9][0-9]"' runs/quickstart/data/train.jsonl >runs/quickstart/data/long.jsonl
fi
if needs_runs_of reward_model && [[ ! -d runs/pictures/reward_model ]]; then
  say "training the reward model"
  install_oracles || die $exit_download "transformers could not be installed (see $(log_file oracles))"
  "$oracles_dir/bin/python" apps/dev/reward_model.py runs/quickstart/warm runs/quickstart/data/train.jsonl runs/pictures/reward_model \
    >"$(log_file pictures-reward-model)" 2>&1
fi
if needs_run recipe_warm_start; then
  mkdir -p runs/pictures/recipe_warm_start
  cp runs/quickstart/warm_run/metrics.jsonl runs/pictures/recipe_warm_start
fi
[[ -f runs/quickstart/data/examples.jsonl ]] || head -n 500 runs/quickstart/data/sft.jsonl >runs/quickstart/data/examples.jsonl

if [[ ${#runs[@]} -gt 0 ]]; then
  say "training"
  bash apps/dev/pictures_runs.sh $bin/mortise "${runs[@]}"
fi
"$venv/bin/python" apps/dev/curves.py runs/pictures $out "${wanted[@]}"

if is_wanted terminal; then
  say "recording the terminal"
  rm -rf runs/pictures/terminal
  "$venv/bin/python" apps/dev/terminal_svg.py $out/terminal.svg 15 $bin/mortise train configs/quickstart.toml \
    trainer.default_local_dir=runs/pictures/terminal trainer.validation_data_dir=null trainer.test_freq=10
fi

if is_wanted report; then
  say "photographing the report"
  $bin/mortise report runs/pictures/base runs/pictures/lr_4e-4 -o runs/pictures/report.html
  for scheme in light dark; do
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=20000 --window-size=1000,900 \
      --user-data-dir="$PWD/runs/pictures/profile" --blink-settings=preferredColorScheme=$([[ $scheme == dark ]] && echo 0 || echo 1) \
      --screenshot="$PWD/$out/report_$scheme.png" "file://$PWD/runs/pictures/report.html" >"$(log_file "pictures-$scheme")" 2>&1
    "$venv/bin/python" - "$out/report_$scheme.png" <<'PYTHON'
import sys
from PIL import Image
Image.open(sys.argv[1]).convert("RGB").quantize(128).save(sys.argv[1], optimize=True)
PYTHON
  done
fi
du -sh $out
