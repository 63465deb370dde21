# What ./dev test --device [NAME] [PART...] does. test.sh sources this file.
#   kernels   what a device computes against the CPU and transformers (tests/device): the first to run on a new GPU
#   runs      whole runs: what the CPU learns, and resumes
#   replay    TRL's trajectories
#   kill      runs that are killed and resumed
# Each part takes less than ten minutes on a GPU; without a PART all of them run. Each writes
# build/measured/test-PART.json, with the device and versions, and on a GPU docs/measured/test-PART.json, to be committed.
# The programs come from the folder $bundle if it is set, and else from build/release.
readonly device_parts='kernels runs replay kill'

# device_programs PART: lines PROGRAM FILTER.
device_programs() {
  case $1 in
    kernels) echo 'device_tests *' ;;
    runs) echo 'test_device_runs *' ;;
    replay) echo 'test_replay Cases/*' ;;
    kill) echo 'test_kill Of/Kill.*adaptive_kl:Of/Kill.*lora:Of/Kill.*/bfloat16' ;;
  esac
}

# run_device_part DEVICE PART: a part's programs, and its report. Ends with 13 if the device cannot be used.
run_device_part() {
  local name=$1 part=$2 program filter began=$SECONDS status=0 code reports=() words
  local log=$PWD/build/measured/$part.log
  mkdir -p build/measured
  : >"$log"
  while read -r program filter; do
    say "$program on $name"
    reports+=("$PWD/build/measured/$program.json")
    rm -f "${reports[-1]}"
    words=(--gtest_filter="$filter" --gtest_output="json:${reports[-1]}")
    if [[ $program == device_tests ]]; then words=("$name" "${words[@]}"); fi
    (cd tests && exec "$device_programs_dir/tests/$program" "${words[@]}") 2>&1 </dev/null | tee -a "$log" && code=0 || code=$?
    [[ $code -ne $exit_no_device ]] || exit "$exit_no_device"
    [[ $code -eq 0 ]] || status=$code
  done < <(device_programs "$part")
  "$system_python" apps/dev/device_report.py tests "$part" --device "$name" --log "$log" --google "${reports[@]}" \
    --wall-s $((SECONDS - began)) --status "$status" --out "build/measured/test-$part.json" --measured docs/measured
}

build_device_tests() {  # PART...
  local part targets=()
  say "building the tests of a device: $*"
  for part; do targets+=($(device_programs "$part" | cut -d' ' -f1)); done
  build release "${targets[@]}" $(cuda_module_target) >"$(log_file build-device)" 2>&1 ||
    { tail -n 40 "$(log_file build-device)" >&2; exit 1; }
  device_programs_dir=$PWD/build/release
}

use_bundle() {
  device_programs_dir=$(readlink -f "$bundle")
  [[ -x $device_programs_dir/tests/device_tests ]] || die $exit_usage "$bundle has no tests/device_tests; name a folder that ./dev bundle --tests made"
  export MORTISE_SOURCE_FOLDER=$PWD MORTISE_BUILD_FOLDER=$device_programs_dir
}

# test_device DEVICE [PART...]
test_device() {
  local name=$1 part status=0
  shift
  [[ $# -gt 0 ]] || set -- $device_parts
  if [[ -n $bundle ]]; then use_bundle; else build_device_tests "$@"; fi
  export MORTISE_TEST_DEVICE=$name MORTISE_KILLS=${MORTISE_KILLS:-2}
  for part; do run_device_part "$name" "$part" || status=1; done
  return "$status"
}
