# ./dev pictures: makes docs/pictures/ from real runs: the terminal, the report page, and the learning curves of the README,
# the cookbook and the guides. It takes about ten minutes on two cores. runs/pictures/ keeps finished runs: remove it to
# run them again.
source apps/dev/lib.sh
case ${1:-} in
  "") ;;
  -h | --help) sed -n '/^source/q; s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) die $exit_usage "pictures takes no '$1'" ;;
esac
need_apt build test pictures
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
if [[ ! -d runs/tools/warm/global_step_400 ]]; then
  rm -rf runs/tools
  $bin/make_tool_task runs/tools
  $bin/mortise sft configs/sft_tools.toml >"$(log_file pictures-sft-tools)" 2>&1
fi
say "training"
bash apps/dev/pictures_runs.sh $bin/mortise
"$venv/bin/python" apps/dev/curves.py runs/pictures $out

say "recording the terminal"
rm -rf runs/pictures/terminal
"$venv/bin/python" apps/dev/terminal_svg.py $out/terminal.svg 15 $bin/mortise train configs/quickstart.toml \
  trainer.default_local_dir=runs/pictures/terminal trainer.validation_data_dir=null trainer.test_freq=10

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
du -sh $out
