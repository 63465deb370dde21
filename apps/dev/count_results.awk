# Reads the JUnit file of one ctest run. First line of output: PASSED FAILED SKIPPED; then the name of each that failed or was skipped.
# A GoogleTest program counts case by case, any other test as one. What dies, times out or never starts is a failure, whatever
# else it printed; so is a program that ends with success before its cases have ended.
function value(line, key) { return match(line, key "=\"[^\"]*\"") ? substr(line, RSTART + length(key) + 2, RLENGTH - length(key) - 3) : "" }
function note(kind, what) { notes = notes "  " kind ": " name (what == "" ? "" : " " what) "\n" }
function number(line) { return match(line, /\] [0-9]+ test/) ? substr(line, RSTART + 2) + 0 : 0 }
/^\t<testcase / {
  name = value($0, "name"); status = value($0, "status")
  ok = bad = skip = started = ran = 0; sum_ok = sum_bad = sum_skip = 0; reason = ""
}
/^\t\t<skipped / { reason = value($0, "message") }
/\[ RUN      \] / { started++ }
/\[       OK \] .*\([0-9]+ ms\)$/ { ok++ }
/\[  SKIPPED \] .*\([0-9]+ ms\)$/ { skip++; sub(/.*\] /, ""); note("skipped", $1) }
/\[  FAILED  \] .*\([0-9]+ ms\)$/ { bad++; sub(/.*\] /, ""); note("failed", $1) }
/\[==========\] .* ran\./ { ran = 1 }
/\[  PASSED  \] [0-9]+ test/ { sum_ok = number($0) }
/\[  FAILED  \] [0-9]+ test/ { sum_bad = number($0) }
/\[  SKIPPED \] [0-9]+ test/ { sum_skip = number($0) }
/^\t<\/testcase>/ {
  if (status == "disabled" || (status == "notrun" && reason ~ /SKIP_/)) { skipped++; note("skipped", "(" (reason == "" ? status : reason) ")"); next }
  if (started && ran) { ok = sum_ok; bad = sum_bad; skip = sum_skip }
  else if (started) { bad++; note("failed", "(ended before its cases did)") }
  else if (status == "run") ok = 1
  if (status != "run" && bad == 0) { bad = 1; note("failed", reason == "" ? "(status " status ")" : "(" reason ")") }
  passed += ok; failed += bad; skipped += skip
}
END { printf "%d %d %d\n%s", passed, failed, skipped, notes }
