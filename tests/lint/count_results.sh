# count_results.sh ROOT: tests the summary of ./dev test on the recorded ctest run in samples/. It has a program with a
# case of each outcome, one that aborts, a plain test, one skipped by its exit code, one failed, one timed out, one
# missing, one disabled, a program whose cases are entries, and one that runs no case. With CI=true the missing oracle
# of two cases is a failure, and so is a tool that ./dev installs.
set -euo pipefail
cd "$1"
count() { awk -v preset=release -v ci="$1" -f apps/dev/count_results.awk tests/lint/samples/ctest_junit.xml; }
skips='  skipped: release g.A.skip: no
  skipped: release crash.A.skip: no
  skipped: release skipped: SKIP_RETURN_CODE=77
  skipped: release off: disabled'
crate="  skipped: release crate: rust_crate.sh: skipped: there is no cargo, which ./dev does not install"
tool="abi_diff.sh: skipped: abidiff is not installed (Debian: abigail-tools)"
oracle="MORTISE_ORACLES_PYTHON is not set: <nobody> judged"
failures="  failed: release g.A.fail
    alone: ./dev test --only 'g.A.fail'
  failed: release crash.A.fail
    alone: ./dev test --only 'crash.A.fail'
  failed: release crash.A.DISABLED_crash (it ended before its cases did)
    alone: ./dev test --only 'crash.A.DISABLED_crash'
  failed: release plainfail (it failed, or ran out of time)
    alone: ./dev test --only 'plainfail'
  failed: release slow (it failed, or ran out of time)
    alone: ./dev test --only 'slow'
  failed: release missing (Unable to find executable)
    alone: ./dev test --only 'missing'"
more="  failed: release split.B.three
    alone: ./dev test --only 'split.B.three'
  failed: release empty (it ran no case)
    alone: ./dev test --only 'empty'"
diff <(echo "5 8 8
$skips
  skipped: release abi: $tool
$crate
  skipped: release split.B.one and 1 more: $oracle
$failures
$more") <(count "")
diff <(echo "5 11 5
$skips
$crate
$failures
  failed: release abi (skipped: $tool)
    alone: ./dev test --only 'abi'
  failed: release split.B.one (skipped: $oracle)
    alone: ./dev test --only 'split.B.one'
  failed: release split.B.two/0 (skipped: $oracle)
    alone: ./dev test --only 'split.B.two/0'
$more") <(count true)
