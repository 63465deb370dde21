# Prints each place where a text is glued from three pieces or more: "a" + x + "b", also over several lines and around calls.
# Follows parentheses: the innermost are looked at first and then replaced by (), so that f(a + b) is one piece.
function report(piece, where) {
  gsub(/\([ ]*\)/, "()", piece)
  if (gsub(/ \+ /, " + ", piece) >= 2 && piece ~ /(^|[^A-Za-z0-9_])"T"( \+|$)|\+ "T"/) print FILENAME ":" where
}
function check(content, where, count, parts, i) {
  gsub(/<<|>>|&&|\|\||[=!<>+*\/-]=|[,?:;={}]| return |^return /, "\001", content)
  count = split(content, parts, "\001")
  for (i = 1; i <= count; ++i) report(parts[i], where)
}
function finish_statement(where) {
  where = first ? first : start
  gsub(/::/, "_", statement)
  gsub(/"T"([ ]+"T")+/, "\"T\"", statement)
  while (match(statement, /[(\[{][^()\[\]{}]*[)\]}]/)) {
    check(substr(statement, RSTART + 1, RLENGTH - 2), where)
    statement = substr(statement, 1, RSTART - 1) " " substr(statement, RSTART + RLENGTH)
  }
  gsub(/[()\[\]{}]/, ";", statement)
  check(statement, where)
  statement = ""; first = 0; start = 0
}
FNR == 1 { statement = ""; first = 0; start = 0; in_raw = 0 }
in_raw { if (!/\)"/) next; in_raw = 0; sub(/^.*\)[A-Za-z_]*"/, "\"T\"") }
/^[ \t]*#/ { next }
{
  line = $0
  gsub(/\\\\/, "", line); gsub(/\\"/, "", line); gsub(/'"'/, "0", line)
  if (line ~ /R"[A-Za-z_]*\(/) { sub(/R"[A-Za-z_]*\(.*$/, "", line); in_raw = $0 !~ /R"[A-Za-z_]*\(.*\)[A-Za-z_]*"/ }
  gsub(/"[^"]*"/, "\"T\"", line)
  sub(/\/\/.*/, "", line)
  if (line ~ /^[ \t]*$/) next
  if (!start) start = FNR
  if (!first && line ~ /"T" \+|\+ "T"/) first = FNR
  sub(/^[ \t]+/, "", line)
  statement = statement " " line " "
  if (line ~ /[;{}]$/) finish_statement()
}
