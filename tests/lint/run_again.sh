# run_again.sh ROOT: tests the second try of ./dev test (apps/dev/again.sh) with a real ctest. Entries with the label "timed" have
# one, others have none, and the second result is what counts.
set -euo pipefail
root=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
source "$root/apps/dev/again.sh"

# entry NAME FAILURES LABEL: fails in its first runs.
mkdir -p build/release runs
entry() {
  local body="echo run >>runs/$1; [ \$(wc -l <runs/$1) -gt $2 ] && echo good || { echo bad; exit 1; }"
  printf 'add_test([=[%s]=] sh -c [=[%s]=])\nset_tests_properties([=[%s]=] PROPERTIES WORKING_DIRECTORY "%s" LABELS "%s")\n' \
    "$1" "$body" "$1" "$scratch" "$3" >>build/release/CTestTestfile.cmake
}
entry good 0 timed
entry late.A+B 1 'threads;timed'
entry late.A 1 timed
entry broken 9 timed
entry exact 1 threads

xml=$scratch/build/release/tests.xml
! ctest --test-dir build/release -j 3 --output-junit "$xml" >log || { echo "the first run must fail: $(<log)"; exit 1; }
run_again release "$xml" --output-on-failure >log
[[ $again == $'broken\nlate.A\nlate.A+B' ]] || { echo "must run again what failed and is timed, but ran: $again"; exit 1; }
[[ $again_status -ne 0 ]] || { echo "one of them fails again"; exit 1; }
diff <(echo 'broken 2
exact 1
good 1
late.A 2
late.A+B 2') <(cd runs && wc -l * | awk '$2 != "total" { print $2, $1 }' | sort)
diff <(echo '3 2 0
  failed: release exact (it failed, or ran out of time)
    alone: ./dev test --only '"'exact'"'
  failed: release broken (it failed, or ran out of time)
    alone: ./dev test --only '"'broken'") <(awk -v preset=release -f "$root/apps/dev/count_results.awk" build/release/tests_counted.xml)

# Nothing timed failed: nothing runs, and the first results stay.
run_again release <(grep -v 'name="\(broken\|late\)' "$xml") >log
[[ -z $again ]] || { echo "must run nothing again, but ran: $again"; exit 1; }
