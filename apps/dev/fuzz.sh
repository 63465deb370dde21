# ./dev fuzz [--seconds N] [NAME...]: fuzz the readers of outside files (tests/fuzz) for N seconds each (default 60).
# New inputs that reach new code go to build/fuzz/corpus; one that breaks a reader to build/fuzz/crashes, and this ends with 1.
# Such an input belongs into tests/fuzz/corpus/NAME once the reader is mended: every ctest run replays those.
source apps/dev/lib.sh
seconds=60
while [[ $# -gt 0 && $1 == -* ]]; do
  case $1 in
    --seconds) seconds=${2:?"--seconds needs a number"}; shift 2 ;;
    -h | --help) sed -n '/^source/q; s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die $exit_usage "fuzz takes no '$1'" ;;
  esac
done
[[ $seconds =~ ^[0-9]+$ ]] || die $exit_usage "--seconds needs a number, not '$seconds'"
need_apt build test
say "building the fuzz targets"
build fuzz fuzz_targets
names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
  for program in build/fuzz/tests/fuzz_*; do names+=("${program##*/fuzz_}"); done
fi
num_broken=0
for name in "${names[@]}"; do
  program=build/fuzz/tests/fuzz_$name
  [[ -x $program ]] || die $exit_usage "no fuzz target '$name'"
  mkdir -p "build/fuzz/corpus/$name" build/fuzz/crashes
  say "$name: $seconds s"
  # -timeout: an input that takes 10 s is a fault as well; -rss_limit_mb: so is one that takes 2 GB.
  if ! "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/crashes/$name-" "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"$(log_file "fuzz-$name")" 2>&1; then
    num_broken=$((num_broken + 1))
    tail -n 40 "$(log_file "fuzz-$name")" >&2
  fi
  sed -n 's/^stat::\(number_of_executed_units\|peak_rss_mb\): */   \1 /p' "$(log_file "fuzz-$name")"
done
echo "$((${#names[@]} - num_broken)) passed, $num_broken failed"
[[ $num_broken -eq 0 ]]
