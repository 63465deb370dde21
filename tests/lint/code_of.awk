# code_of(line): the part of a line of C++ that is neither text nor comment, for checks that follow braces. It carries raw
# strings and comments from line to line, so call it for the lines of a file in order.
FNR == 1 { raw_end = ""; in_comment = 0 }
function code_of(line, at, rest) {
  if (raw_end != "") {
    at = index(line, raw_end)
    if (!at) return ""
    line = substr(line, at + length(raw_end)); raw_end = ""
  }
  gsub(/\\\\/, "", line); gsub(/\\"/, "", line); gsub(/'\\?.'/, "", line); gsub(/'\\''/, "", line)
  if (match(line, /R"[A-Za-z_]*\(/)) {
    raw_end = ")" substr(line, RSTART + 2, RLENGTH - 3) "\""
    rest = substr(line, RSTART + RLENGTH); line = substr(line, 1, RSTART - 1)
    at = index(rest, raw_end)
    if (at) { line = line substr(rest, at + length(raw_end)); raw_end = "" }
  }
  gsub(/"[^"]*"/, "", line)
  if (in_comment) { if (!sub(/^.*\*\//, "", line)) return ""; in_comment = 0 }
  gsub(/\/\*[^*]*\*\//, "", line)
  sub(/\/\/.*/, "", line)
  if (sub(/\/\*.*/, "", line)) in_comment = 1
  return line
}
