# Entries that fail next to others get another run, if a busy machine may be the reason. test.sh sources this file.

escape() { sed 's/[].*^$+?(){}|\\[]/\\&/g' <<<"$1"; }  # a text as a regular expression

# run_again PRESET XML CTEST_OPTION...: runs the failed entries of XML that have the ctest label "timed" once more, one after
# another. Their second results count: build/PRESET/tests_counted.xml has them in place of the first ones. Sets `again` to the
# names of those that ran, and `again_status` to the exit code of that ctest.
run_again() {
  local folder=build/$1 xml=$2 failed
  shift 2
  again='' again_status=0
  failed=$(comm -12 <(ctest --test-dir "$folder" -N -L '^timed$' | sed -nE 's/^ *Test +#[0-9]+: //p' | sort) <(failed_entries "$xml"))
  [[ -n $failed ]] || return 0
  again=$failed
  ctest --test-dir "$folder" -R "^($(escape "$again" | paste -sd '|'))\$" --output-junit "$PWD/$folder/tests_again.xml" "$@" ||
    again_status=$?
  {
    awk -v names="$again" 'BEGIN { n = split(names, name, "\n"); for (i = 1; i <= n; ++i) is_out[name[i]] }
      /^\t<testcase / { split($0, part, "\""); skip = part[2] in is_out }
      !skip
      /^\t<\/testcase>/ { skip = 0 }' "$xml"
    sed -n '/^\t<testcase /,/^\t<\/testcase>/p' "$folder/tests_again.xml"
  } >"$folder/tests_counted.xml"
}

# failed_entries XML: their names, sorted.
failed_entries() { sed -nE 's/^\t<testcase name="([^"]*)".* status="fail".*/\1/p' "$1" | sort; }
