#!/bin/bash
# guides.sh SOURCE BUILD_DIR: the commands of docs/cookbook.md and docs/guides/ run (train as a dry run on tiny models, sft
# as `config show`), the cookbook names every recipe in configs/, the pictures that pages show are there and small, and the pages have their
# numbers.
set -euo pipefail
source_dir=$1 build_dir=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "guides.sh: $*" >&2; exit 1; }

pages=("$source_dir"/docs/cookbook.md "$source_dir"/docs/guides/*.md)
for recipe in "$source_dir"/configs/*.toml; do
  grep -qE "^mortise (train|sft) configs/$(basename "$recipe")( |$)" "$source_dir/docs/cookbook.md" ||
    fail "docs/cookbook.md has no command for configs/$(basename "$recipe")"
done
for page in "$source_dir/README.md" "${pages[@]}"; do
  while read -r picture; do
    [[ -s $(dirname "$page")/$picture ]] || fail "$page shows $picture, which is not there: run ./dev pictures"
  done < <(grep -oE '(\]\(|(src|srcset)=")[^)"]*pictures/[a-z_]+\.(svg|png)' "$page" | sed -E 's/^.*(\(|")//')
done
[[ $(cat "$source_dir"/docs/pictures/* | wc -c) -le 512000 ]] || fail "docs/pictures/ has more than 500 KB"

# The numbers of the pages are those of the pictures.
python3 - "$source_dir/docs" <<'PYTHON' || fail "the pages have other numbers than docs/pictures/results.json: correct them"
import json, pathlib, sys
docs = pathlib.Path(sys.argv[1])
text = "".join((docs / page).read_text() for page in ("cookbook.md", "guides/hyper_parameters.md"))
missing = {run: ends["last"] for run, ends in json.loads((docs / "pictures/results.json").read_text()).items()
           if f"{ends['last']:.3f}" not in text}
sys.exit(f"not in the pages: {missing}" if missing else 0)
PYTHON

# ./dev pictures trains the runs that the list names: all of them, and for one picture only its own.
pictures() { python3 "$source_dir/apps/dev/picture_list.py" "$@"; }
trained() { # RUN...: the runs that the script starts
  (cd "$(mktemp -d -p "$scratch")" && mkdir -p runs/pictures && bash "$source_dir/apps/dev/pictures_runs.sh" "$fake" "$@") |
    sed -n 's/^== run //p' | sort
}
fake=$scratch/writes_folder
printf '%s\n' '#!/bin/bash' 'for word; do case $word in trainer.default_local_dir=*) mkdir -p "${word#*=}" ;; esac; done' >"$fake"
chmod +x "$fake"
mapfile -t names < <(pictures)
mapfile -t runs < <(pictures --runs "${names[@]}" | grep -vx recipe_warm_start)
[[ ${#runs[@]} -ge 20 && $(trained "${runs[@]}") == "$(printf '%s\n' "${runs[@]}")" ]] || fail "pictures_runs.sh trains other runs than picture_list.py names"
[[ $(pictures --runs choose_kl | paste -sd' ') == "base kl_0.01 kl_0.3" ]] || fail "choose_kl needs other runs"
[[ $(pictures --runs terminal | wc -l) == 0 ]] || fail "the terminal needs no run, but the list names one"
mapfile -t runs < <(pictures --runs recipe_distill)
[[ $(trained "${runs[@]}" | paste -sd' ') == "recipe_distill seed_1" ]] || fail "distill trains other runs than itself and its teacher"
for name in "${names[@]}"; do
  compgen -G "$source_dir/docs/pictures/${name}[._]*" >/dev/null || fail "docs/pictures/ lacks $name: run ./dev pictures $name"
done

cd "$scratch"
cp -r "$source_dir/configs" configs
task() { "$build_dir/bin/$1" "${@:2}" >log 2>&1 || fail "$1: $(cat log)"; }
task make_task runs/quickstart
task make_tool_task runs/tools
task make_tool_task runs/search --search
task make_tool_task runs/game
task make_task runs/experts --experts
mkdir -p runs/experts/warm/global_step_300 runs/tools/warm/global_step_400 runs/search/warm/global_step_800 runs/quickstart/train/global_step_1300
cp -r runs/quickstart/model runs/quickstart/init
cp -r runs/quickstart/model runs/quickstart/train/global_step_1300/huggingface
cp -r runs/experts/model runs/experts/warm/global_step_300/huggingface
cp -r runs/tools/model runs/tools/warm/global_step_400/huggingface
cp -r runs/search/model runs/search/warm/global_step_800/huggingface
mv runs/quickstart/model runs/quickstart/warm
export PATH="$build_dir/bin:$PATH"
count=0
for page in "${pages[@]}"; do
  while IFS= read -r command; do
    [[ -n $command ]] || continue
    case $command in
      "mortise sft "*) command=${command/ sft / config show } ;;  # sft has no dry run
      # The model is the reader's. your_model.sh runs the recipes for GSM8K.
      "mortise train configs/reward_model.toml"* | "mortise train configs/gsm8k"*) command=${command/ train / config show } ;;
      "mortise train "*) command+=" --dry-run" ;;
    esac
    bash -euo pipefail -c "$command" >log 2>&1 </dev/null || fail "$(basename "$page"): '$command' failed: $(tail -n 20 log)"
    count=$((count + 1))
  done < <(awk '/^```sh$/ { on = 1; next } /^```/ { on = 0 } on' "$page")
done
[[ $count -ge 15 ]] || fail "the pages have only $count commands"
echo "guides: $count commands run"
