# ./dev test [--quick] [--long] [--only NAME [--preset P]] [--servers] [--device [NAME] [PART...] [--bundle DIR]]
# Runs the tests that every change must pass. CI runs this.
#   release   all tests
#   asan      the tests of rooms without libtorch, with AddressSanitizer and UBSan, compiled by clang
#   tsan      the same with the ctest label "threads" only, with ThreadSanitizer
# The builds for asan and tsan take the time in which the stages before them wait. Their lines show what was left of them.
# --quick stops after release. --long sets MORTISE_LONG=1: tests run their full counts, and each may take four hours.
# --servers runs only the tests of rollout servers, with a real vLLM for the CPU. It installs vLLM (2.7 GB to fetch, 5.2 GB on
# disk, once) and needs 5 GB of memory and about 15 minutes. --long includes it.
# --only runs one test again, by its name in the last lines: PROGRAM.SUITE.CASE, or the name of a ctest entry.
# --device runs the tests that need a GPU on cuda, or on NAME (cuda:N, or cpu-as-device, which proves the list), and
# nothing else: the PARTs kernels (the list of tests/device), runs (what the CPU learns), replay (TRL's trajectories) and kill
# (kills and resumes), or all of them. Each part is under ten minutes and writes JSON (test_device.sh). Without a GPU it says what is
# missing and ends with code 13, before it builds. --bundle takes the programs from a folder of `./dev bundle --tests`: then it
# builds and installs nothing (docs/bundles.md).
# The last lines say how long each stage and its ten slowest entries took. They list the skipped tests with the reason, and
# the failed tests with the command that runs each alone. With CI=true a missing oracle fails the tests that need it. The
# very last line is "N passed, N failed". The exit code is 1 if anything failed.
source apps/dev/lib.sh
source apps/dev/test_device.sh
# Seconds for an entry that tests/seconds.txt does not list. Under a sanitizer it takes several times as long.
quick= long= only= servers= device= bundle= only_preset=release test_seconds=600 sanitized_seconds=1800
chosen_parts=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=1; shift ;;
    --long) long=1; export MORTISE_LONG=1; test_seconds=14400 sanitized_seconds=14400; shift ;;
    --servers) servers=1; shift ;;
    --only) only=${2:?"--only needs the name of a test"}; shift 2 ;;
    --device)
      device=cuda
      if [[ ${2:-} == cuda* || ${2:-} == cpu-as-device ]]; then device=$2 && shift; fi
      shift
      while [[ " $device_parts " == *" ${1:-none} "* ]]; do chosen_parts+=("$1") && shift; done
      ;;
    --preset) only_preset=${2:?"--preset needs a name"}; shift 2 ;;
    --bundle) bundle=${2:?"--bundle needs a folder"}; shift 2 ;;
    -h | --help) sed -n '/^source/q; s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die $exit_usage "test takes no '$1'" ;;
  esac
done
[[ $only_preset =~ ^(release|asan|tsan)$ ]] || die $exit_usage "test has no preset '$only_preset': it has release, asan and tsan"
[[ -n $only || $only_preset == release ]] || die $exit_usage "--preset belongs to --only; without it, all presets are tested"

[[ -z $bundle || -n $device ]] || die $exit_usage "--bundle belongs to --device"
[[ -z $servers || -z $only$quick ]] || die $exit_usage "--servers chooses the tests: leave --only and --quick out"

passed=0 failed=0 skipped=0 skip_notes= failure_notes= stage_notes=
started=$SECONDS stage_began=$SECONDS
record() { passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3)); }
# stage_ends NAME: notes how long the stage took, which began where the one before ended.
stage_ends() {
  [[ $SECONDS -eq $stage_began ]] || stage_notes+=$(printf '  %5d s  %s' $((SECONDS - stage_began)) "$1")$'\n'
  stage_began=$SECONDS
}
# slowest_of XML: the ten ctest entries that took longest.
slowest_of() {
  sed -nE 's/^\t<testcase name="([^"]*)".* time="([0-9]+)[^"]*".*/\2 \1/p' "$1" | sort -k1,1nr -k2 | sed -n '1,10p' |
    while read -r seconds name; do printf '           %5d s  %s\n' "$seconds" "$name"; done
}

# build_or_note PRESET [TARGET...]: counts a failed build as one failure, and continues.
build_or_note() {
  say "$1: building (at $((SECONDS - started)) s)"
  local log
  log=$(log_file "build-$1")
  if build "$@" >"$log" 2>&1; then
    stage_ends "$1: build"
    return 0
  fi
  stage_ends "$1: build"
  grep -v '^\[[0-9]*/[0-9]*\] \(Building\|Linking\)' "$log" | tail -n 60 >&2
  record 0 1 0
  failure_notes+="  failed: $1 does not build (the whole log: $log)"$'\n'
  return 1
}

# build_ahead PRESET [TARGET...]: starts a build that takes only the time in which the stages before it wait: the kernel
# gives it a processor that nobody else wants. Such builds run one after the other. finish_build_ahead PRESET waits for
# one. It says nothing of faults, because build_or_note repeats what failed and counts it.
declare -A ahead_jobs=()
last_ahead_job=
build_ahead() {
  say "$1: building while others wait"
  local log before=$last_ahead_job
  log=$(log_file "build-$1-ahead")
  (
    chrt --idle --pid 0 "$BASHPID" || renice -n 19 -p "$BASHPID"
    [[ -z $before ]] || tail --pid="$before" -f /dev/null
    build "$@"
  ) >"$log" 2>&1 </dev/null &
  ahead_jobs[$1]=$! last_ahead_job=$!
}
finish_build_ahead() {
  local job=${ahead_jobs[$1]:-}
  [[ -n $job ]] || return 0
  usual_priority "$job"
  wait "$job" || true
  unset "ahead_jobs[$1]"
}
usual_priority() {  # PROCESS: for it and those that it started. Only root may do this; others wait a little longer.
  local one
  chrt --other --pid 0 "$1" 2>/dev/null || return 0
  for one in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do usual_priority "$one"; done
}

# run_tests PRESET [CTEST OPTIONS...]
run_tests() {
  local preset=$1 xml=$PWD/build/$1/tests.xml status=0 limit=$sanitized_seconds counts
  [[ $1 != release ]] || limit=$test_seconds
  shift
  say "$preset: testing (at $((SECONDS - started)) s)"
  rm -f "$xml"
  # Many entries wait for a time limit or for a process that ends. More entries than processors keep all of them busy.
  ctest --test-dir "build/$preset" -j "$((num_jobs + 2))" --timeout "$limit" --output-on-failure --no-tests=error --output-junit "$xml" \
    --test-output-size-passed 100000000 --test-output-size-failed 100000000 "$@" || status=$?
  stage_ends "$preset: tests"
  if [[ -f $xml ]]; then
    stage_notes+=$(slowest_of "$xml")$'\n'
    counts=$(awk -v preset="$preset" -v ci="${CI:-}" -f apps/dev/count_results.awk "$xml")
    record $(head -n 1 <<<"$counts")
    skip_notes+=$(grep '^  skipped:' <<<"$counts" || true)$'\n'
    failure_notes+=$(tail -n +2 <<<"$counts" | grep -v '^  skipped:' || true)$'\n'
  fi
  if [[ ! -f $xml ]] || [[ $status -ne 0 && $(head -n 1 <<<"$counts") == *" 0 "* ]]; then
    record 0 1 0
    failure_notes+="  failed: $preset: ctest ended with $status"$'\n'
  fi
}

test_release() {
  build_or_note release || return 0
  if [[ -n $oracles_job ]] && ! wait "$oracles_job"; then
    say "WARNING: the oracles could not be installed (see $(log_file oracles)); the tests that need them are SKIPPED"
  fi
  stage_ends "waiting for the oracles"
  use_oracles
  run_tests release
}

# want_vllm: installs it, and lets the tests know. Without it, --long skips its tests; a call for these tests alone ends.
want_vllm() {
  have_wheels vllm || say "installing vLLM for the tests (2.7 GB, once) into $MORTISE_CACHE/vllm"
  if install_wheels vllm; then
    export MORTISE_VLLM_PYTHON=$MORTISE_CACHE/vllm/bin/python
  elif [[ -n $servers$only ]]; then
    die $exit_download "vLLM could not be installed (see $(log_file vllm))"
  else
    say "WARNING: vLLM could not be installed (see $(log_file vllm)); the tests that need it are SKIPPED"
  fi
  stage_ends "installing vLLM"
}

test_servers() {
  build_or_note release mortise mortise-worker make_task packs test_vllm test_plugins_servers || return 0
  run_tests release -R '^(test_vllm|test_plugins_servers|test_recorded_servers.*)$'
}

test_asan() {
  finish_build_ahead asan
  build_or_note asan || return 0
  ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 run_tests asan
}

test_tsan() {
  finish_build_ahead tsan
  build_or_note tsan thread_tests || return 0
  without_randomisation run_tests tsan -L '^threads$'
}

# GCC 12's shadow memory for threads does not work with the wide address randomisation of some kernels.
without_randomisation() {
  if setarch -R true 2>/dev/null; then
    ctest() { setarch -R /usr/bin/ctest "$@"; }
  fi
  "$@"
  unset -f ctest
}

escape() { sed 's/[].*^$+?(){}|\\[]/\\&/g' <<<"$1"; }  # a text as a regular expression

# test_only NAME PRESET: runs the ctest entries that contain the test. If NAME names a case, each entry runs only that case.
test_only() {
  local name=$1 preset=$2 program=${1%%.*} rest entries target=
  say "$preset: building what $name needs"
  configure "$preset" || die 1 "$preset does not configure"
  if ninja -C "build/$preset" -t targets all | grep "^$program: phony" >/dev/null; then target=$program; fi
  build_or_note "$preset" $target || return 0
  entries=$(escape "$program")
  if [[ $name == *.* ]]; then
    rest=${name#*.}
    export GTEST_FILTER=$rest
    entries+="(\.$(escape "${rest%%.*}")|\.$(escape "$rest"))?"
  fi
  use_oracles
  case $preset in
    tsan) without_randomisation run_tests tsan -R "^$entries$" ;;
    *) ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
      run_tests "$preset" -R "^$entries$" ;;
  esac
}

# An empty cache, as in CI, finds nothing, and to fill it costs 0.08 s of each compilation, or 0.2 s with a large precompiled
# header. ./dev build and ./dev quickstart fill it.
compile_without_an_empty_cache() {
  [[ $(ccache --print-stats 2>/dev/null | awk '$1 == "files_in_cache" { print $2 }') != 0 ]] || export CCACHE_DISABLE=1
}

test_all() {
  compile_without_an_empty_cache
  if have_oracles; then
    say "oracles (tests only): $(oracle_names)"
  else
    say "installing oracles for the tests (2.5 GB, once) into $oracles_dir: $(oracle_names)"
    install_oracles &
    oracles_job=$!
  fi
  if command -v nvcc >/dev/null; then
    say "nvcc $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') is here: libmortise_cuda.so is built and its registers are checked (docs/cuda.md)"
  else
    say "nvcc is not here: libmortise_cuda.so is not built; its kernels are tested on the CPU only"
  fi
  if [[ -z $quick ]]; then
    # The release build compiles most tests for asan too, so until it ends only the rest is built.
    ! configure asan || build_ahead asan {sdk,core,plugins,apps}/all test_packs tests_compiled_here
    build_ahead tsan thread_tests
  fi
  test_release
  if [[ -z $quick ]]; then
    test_asan
    test_tsan
  fi
  [[ -z $oracles_job ]] || wait "$oracles_job" || true
}

# fetch_ahead: fetches the libraries while apt installs its packages, if the machine has pip. It says nothing of faults, because
# need_torch and need_arrow wait for its lock and repeat what failed. Whatever ends this script ends it too.
fetch_ahead() {
  "$system_python" -c 'import pip' 2>/dev/null || return 0
  set -m  # a process group of its own
  (need_arrow && need_torch) >"$(log_file fetch-ahead)" 2>&1 </dev/null &
  trap "kill -- -$! 2>/dev/null || true" EXIT
  set +m
}

[[ -z $device ]] || "$system_python" apps/dev/device_report.py ask "$device" || exit
if [[ -n $bundle ]]; then
  test_device "$device" "${chosen_parts[@]}"
  exit
fi

# Tests run in parallel. A waiting thread must not spin on a core that another test needs.
export OMP_WAIT_POLICY=passive
# Hundreds of tests start Python. A shim like pyenv's, if it comes first in PATH, takes a tenth of a second each time.
export PATH=/usr/bin:$PATH

fetch_ahead
need_apt build test
need_torch
need_arrow
if command -v nvcc >/dev/null; then need_cudnn; fi
stage_ends "set-up"
oracles_job=
if [[ -n $device ]]; then
  test_device "$device" "${chosen_parts[@]}"
  exit
fi
if [[ -n $servers || $only == test_vllm* || (-n $long && -z $only) ]]; then want_vllm; fi
if [[ -n $servers ]]; then test_servers; elif [[ -n $only ]]; then test_only "$only" "$only_preset"; else test_all; fi

say "done in $((SECONDS - started)) s:"
printf '%s' "$stage_notes"
printf '%s\n%s\n' "$skip_notes" "$failure_notes" | sed '/^$/d'
[[ $skipped -eq 0 ]] || say "$skipped skipped, for the reasons above"
echo "$passed passed, $failed failed"
[[ $failed -eq 0 && $passed -gt 0 ]]
