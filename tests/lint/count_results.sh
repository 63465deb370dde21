# count_results.sh ROOT: the sum at the end of ./dev test, on the recorded ctest run in samples/: a program with a case of each
# outcome, one that aborts, a plain test, one skipped by its exit code, one failed, one timed out, one missing, one disabled.
set -euo pipefail
cd "$1"
expected='5 6 4
  skipped: g A.skip
  failed: g A.fail
  skipped: crash A.skip
  failed: crash A.fail
  failed: crash (ended before its cases did)
  skipped: skipped (SKIP_RETURN_CODE=77)
  failed: plainfail (status fail)
  failed: slow (status fail)
  failed: missing (Unable to find executable)
  skipped: off (disabled)'
diff <(echo "$expected") <(awk -f apps/dev/count_results.awk tests/lint/samples/ctest_junit.xml)
