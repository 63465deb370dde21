# ./dev fuzz [--fast] [--seconds N] [--runs N] [NAME...]: fuzzes the readers of outside files (tests/fuzz), each for
# N seconds (default 60), or until it has had N inputs.
# Readers are built with ASan and UBSan. --fast builds them optimised, with libstdc++'s bounds checks in place of the
# sanitizers, and keeps inputs below 4 KiB: 5 to 30 times as many inputs per second. Run it first, then run the
# sanitizers over the corpus that it has found.
# Every input must keep the limits of tests/fuzz/cost.cpp: CPU time, memory, size of the output, depth.
# Inputs that reach new code go to build/fuzz/corpus. An input that breaks a reader goes to build/fuzz/crashes; the script
# still fuzzes the other readers, and exits with 1. The last lines say how often each reader ran.
# After you fix the reader, put the input into tests/fuzz/corpus/NAME. Every ctest run replays those inputs.
source apps/dev/lib.sh
seconds=60 runs=-1 preset=fuzz max_len=65536
while [[ $# -gt 0 && $1 == -* ]]; do
  case $1 in
    --seconds) seconds=${2:?"--seconds needs a number"}; shift 2 ;;
    --runs) runs=${2:?"--runs needs a number"}; shift 2 ;;
    --fast) preset=fuzz-fast max_len=4096; shift ;;
    -h | --help) sed -n '/^source/q; s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die $exit_usage "fuzz takes no '$1'" ;;
  esac
done
[[ $seconds =~ ^[0-9]+$ ]] || die $exit_usage "--seconds needs a number, not '$seconds'"
[[ $runs =~ ^(-1|[0-9]+)$ ]] || die $exit_usage "--runs needs a number, not '$runs'"
need_apt build test
say "building the fuzz targets"
build $preset fuzz_targets
names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
  for program in build/$preset/tests/fuzz_*; do names+=("${program##*/fuzz_}"); done
fi
num_broken=0
report=()
for name in "${names[@]}"; do
  program=build/$preset/tests/fuzz_$name
  [[ -x $program ]] || die $exit_usage "no fuzz target '$name'"
  mkdir -p "build/fuzz/corpus/$name" build/fuzz/crashes
  say "$name: $seconds s"
  options=(-max_total_time="$seconds" -runs="$runs" -timeout=1200 -rss_limit_mb=2048 -max_len="$max_len"
    -print_final_stats=1)
  [[ -f tests/fuzz/dictionaries/$name.dict ]] && options+=(-dict="tests/fuzz/dictionaries/$name.dict")
  result=passed
  if ! "$program" "${options[@]}" -artifact_prefix="build/fuzz/crashes/$name-" "build/fuzz/corpus/$name" \
    "tests/fuzz/corpus/$name" >"$(log_file "fuzz-$name")" 2>&1; then
    num_broken=$((num_broken + 1))
    result=broken
    tail -n 40 "$(log_file "fuzz-$name")" >&2
  fi
  count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$(log_file "fuzz-$name")")
  peak=$(sed -n 's/^stat::peak_rss_mb: *//p' "$(log_file "fuzz-$name")")
  report+=("$(printf '%-16s %14s %9s  %s' "$name" "${count:-?}" "${peak:-?}" "$result")")
done
printf '%-16s %14s %9s  %s\n' reader executions "peak MB" result
printf '%s\n' "${report[@]}"
echo "$((${#names[@]} - num_broken)) passed, $num_broken failed"
[[ $num_broken -eq 0 ]]
