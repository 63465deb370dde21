# Reads the JUnit file of one ctest run. The first line of output is PASSED FAILED SKIPPED. Then follow the skipped tests with
# the reason, and the failed tests with the command that runs each alone. Each case of a GoogleTest program counts; any other
# test counts as one. A test that dies, times out or never starts is a failure, whatever it printed. So is a program that
# exits with success before its cases ended, or that runs no case.
#   -v preset=P   the preset to show in the lines
#   -v ci=true    a case that is skipped because an oracle or a tool is missing that ./dev installs for tests is a failure
# The tools of the group `test` of apt_packages.txt, as reasons of skipped tests name them.
BEGIN { installed = "(minisign|abidw|abidiff|clang-format-14|bubblewrap) is not installed" }
function value(line, key) { return match(line, key "=\"[^\"]*\"") ? substr(line, RSTART + length(key) + 2, RLENGTH - length(key) - 3) : "" }
function number(line) { return match(line, /\] [0-9]+ test/) ? substr(line, RSTART + 2) + 0 : 0 }
function plain(text) {
  gsub(/&lt;/, "<", text); gsub(/&gt;/, ">", text); gsub(/&quot;/, "\"", text); gsub(/&apos;/, "'", text); gsub(/&amp;/, "\\&", text)
  return text
}
# The name of an entry, or of a case of it. An entry PROGRAM.SUITE or PROGRAM.SUITE.CASE has the name of its program.
function full_name(which) {
  if (which == "") return name
  return (name ~ /\./ ? substr(name, 1, index(name, ".") - 1) : name) "." which
}
function fail_of(which, reason) {
  failures = failures "  failed: " (preset == "" ? "" : preset " ") full_name(which) (reason == "" ? "" : " (" reason ")") "\n" \
    "    alone: ./dev test --only '" full_name(which) "'" (preset == "" || preset == "release" ? "" : " --preset " preset) "\n"
}
# Cases of one program that are skipped for the same reason share a line.
function skip_of(which, reason,   key) {
  if (ci == "true" && (reason ~ /MORTISE_ORACLES_PYTHON|[Oo]racle/ || reason ~ installed)) { bad++; forced++; fail_of(which, "skipped: " reason); return }
  skip++
  key = (name ~ /\./ ? substr(name, 1, index(name, ".") - 1) : name) SUBSEP reason
  if (!(key in skip_count)) { skip_order[++num_skips] = key; skip_first[key] = full_name(which); skip_reason[key] = reason }
  skip_count[key]++
}
/^\t<testcase / {
  name = plain(value($0, "name")); status = value($0, "status")
  ok = bad = skip = started = ran = forced = 0; sum_ok = sum_bad = sum_skip = 0; reason = why = last_line = running = ""; collecting = 0
}
/^\t\t<skipped / { reason = plain(value($0, "message")) }
/\[ RUN      \] / { started++; why = ""; collecting = 0; running = $0; sub(/.*\] /, "", running) }
/\[==========\] Running 0 tests/ { empty = 1 }
collecting == 1 && !/^\[/ && NF { why = why (why == "" ? "" : " ") plain($0) }
/: Skipped$/ { collecting = 1 }
/\[       OK \] .*\([0-9]+ ms\)$/ { running = ""; ok++ }
/\[  SKIPPED \] .*\([0-9]+ ms\)$/ { running = ""; collecting = 0; sub(/.*\] /, ""); skip_of($1, why) }
/\[  FAILED  \] .*\([0-9]+ ms\)$/ { running = ""; collecting = 0; bad++; sub(/.*\] /, ""); sub(/,$/, "", $1); fail_of($1, "") }
/\[==========\] .* ran\./ { ran = 1 }
/\[  PASSED  \] [0-9]+ test/ { sum_ok = number($0) }
/\[  FAILED  \] [0-9]+ test/ { sum_bad = number($0) }
/\[  SKIPPED \] [0-9]+ test/ { sum_skip = number($0) }
{ line = $0; sub(/^.*<system-out>/, "", line); if (line !~ /^[ \t]*$|^\t*</) last_line = plain(line) }
/^\t<\/testcase>/ {
  if (status == "disabled" || (status == "notrun" && reason ~ /SKIP_/)) {
    skip_of("", reason == "" ? status : last_line == "" ? reason : last_line)
    passed += ok; failed += bad; skipped += skip; empty = 0
    next
  }
  if (started && ran) { ok = sum_ok; bad = sum_bad + forced; skip = sum_skip - forced }
  else if (started) { bad++; fail_of(running, "it ended before its cases did") }
  else if (empty && status == "run") { bad = 1; fail_of("", "it ran no case") }
  else if (status == "run") ok = 1
  if (status != "run" && bad == forced) { bad++; fail_of("", reason == "" ? "it failed, or ran out of time" : reason) }
  passed += ok; failed += bad; skipped += skip; empty = 0
}
END {
  printf "%d %d %d\n", passed, failed, skipped
  for (i = 1; i <= num_skips; ++i) {
    key = skip_order[i]
    printf "  skipped: %s%s%s%s\n", (preset == "" ? "" : preset " "), skip_first[key],
      (skip_count[key] > 1 ? " and " skip_count[key] - 1 " more" : ""), (skip_reason[key] == "" ? "" : ": " skip_reason[key])
  }
  printf "%s", failures
}
