# ./dev test [--quick] [--long]: the tests that decide whether a change may land. CI runs this and nothing else.
#   release   all tests
#   asan      all tests above the libtorch line, with AddressSanitizer and UBSan, compiled by clang: a second compiler takes it all
#   tsan      those of them with the ctest label "threads", with ThreadSanitizer
# --quick stops after release; --long sets MORTISE_LONG=1, by which tests take their full counts, and lets each run for
#   four hours instead of ten minutes.
# Ends with the line "N passed, N failed" over all of it, and with 1 where anything failed.
source apps/dev/lib.sh
quick= test_seconds=600
for option in "$@"; do
  case $option in
    --quick) quick=1 ;;
    --long) export MORTISE_LONG=1 test_seconds=14400 ;;
    -h | --help) sed -n '/^source/q; s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die $exit_usage "test takes no '$option'" ;;
  esac
done

passed=0 failed=0 skipped=0 notes=
started=$SECONDS
record() { passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3)); }

# build_or_note PRESET [TARGET...]: a build that fails is one failure, and the rest goes on.
build_or_note() {
  say "$1: building (at $((SECONDS - started)) s)"
  local log
  log=$(log_file "build-$1")
  if build "$@" >"$log" 2>&1; then return 0; fi
  grep -v '^\[[0-9]*/[0-9]*\] \(Building\|Linking\)' "$log" | tail -n 60 >&2
  record 0 1 0
  notes+="  failed: $1 does not build (all of it: $log)"$'\n'
  return 1
}

# run_tests PRESET [CTEST OPTIONS...]
run_tests() {
  local preset=$1 xml=$PWD/build/$1/tests.xml status=0 counts
  shift
  say "$preset: testing (at $((SECONDS - started)) s)"
  rm -f "$xml"
  ctest --test-dir "build/$preset" -j "$num_jobs" --timeout "$test_seconds" --output-on-failure --no-tests=error --output-junit "$xml" \
    --test-output-size-passed 100000000 --test-output-size-failed 100000000 "$@" || status=$?
  if [[ -f $xml ]]; then
    counts=$(awk -f apps/dev/count_results.awk "$xml")
    record $(head -n 1 <<<"$counts")
    notes+=$(tail -n +2 <<<"$counts" | sed "s|^\(  [a-z]*:\)|\1 $preset|")
    [[ $counts == *$'\n'* ]] && notes+=$'\n'
  fi
  if [[ ! -f $xml ]] || [[ $status -ne 0 && $(head -n 1 <<<"$counts") == *" 0 "* ]]; then
    record 0 1 0
    notes+="  failed: $preset: ctest ended with $status"$'\n'
  fi
}

test_release() {
  build_or_note release || return 0
  if [[ -n $oracles_job ]] && ! wait "$oracles_job"; then
    say "WARNING: the oracles could not be installed (see $(log_file oracles)); the tests that need them are SKIPPED"
  fi
  if have_oracles; then export MORTISE_ORACLES_PYTHON=$oracles_dir/bin/python; fi
  run_tests release
}

test_tsan() {
  configure tsan || { record 0 1 0; notes+="  failed: tsan does not configure"$'\n'; return 0; }
  local targets
  mapfile -t targets < <(ctest --test-dir build/tsan -N -L '^threads$' | sed -n 's/^ *Test *#[0-9]*: //p')
  if [[ ${#targets[@]} -eq 0 ]]; then
    say "tsan: no test has the label 'threads'"
    return 0
  fi
  build_or_note tsan "${targets[@]}" || return 0
  # Without -R, kernels with wide address randomisation break GCC 12's shadow memory.
  if setarch -R true 2>/dev/null; then
    ctest() { setarch -R /usr/bin/ctest "$@"; }
  fi
  run_tests tsan -L '^threads$'
  unset -f ctest
}

need_apt build test
need_torch
oracles_job=
if have_oracles; then
  say "oracles (tests only): $(oracle_names)"
else
  say "installing oracles for the tests (2.5 GB, once) into $oracles_dir: $(oracle_names)"
  install_oracles &
  oracles_job=$!
fi
if command -v nvcc >/dev/null; then
  say "nvcc $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') is here; there is no CUDA code to check yet"
else
  say "nvcc is not here: nothing of CUDA is checked (nor needed by anything below)"
fi

# Tests run side by side, each with threads of its own: one that waits must not spin on the core that another needs.
export OMP_WAIT_POLICY=passive

test_release
if [[ -z $quick ]]; then
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
  if build_or_note asan; then run_tests asan; fi
  test_tsan
fi
[[ -z $oracles_job ]] || wait "$oracles_job" || true

say "done in $((SECONDS - started)) s"
printf '%s' "$notes"
[[ $skipped -eq 0 ]] || say "$skipped skipped, named above"
echo "$passed passed, $failed failed"
[[ $failed -eq 0 && $passed -gt 0 ]]
