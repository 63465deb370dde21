# Prints each function of at least `limit` lines between its braces. Follows braces, not the language: a block that opens after
# a parenthesis outside any function is a function; namespaces, classes and tables of values are not.
function add(piece) {
  if (piece == "") return
  if (carried && text == "" && piece !~ /^[ \t,]/) carried = 0
  text = text piece
}
FNR == 1 { depth = 0; in_function = 0; text = ""; after_block = 0 }
/^[ \t]*#/ { next }  # preprocessor
{
  line = code_of($0)
  while (match(line, /[{};]/)) {
    add(substr(line, 1, RSTART - 1))
    c = substr(line, RSTART, 1)
    line = substr(line, RSTART + 1)
    if (c == "{") {
      depth++
      if (!in_function) {
        is_type = text ~ /(^|[^a-z_])(namespace|class|struct|union|enum)[^a-z_(][^()]*$/ && text !~ /\)[^()]*$/
        is_table = text ~ /^[^(\[]*=[^\[]*$/ && text !~ /operator/  # `x = make({` but not `x = [](`
        if (!is_type && !is_table && (text ~ /\(/ || carried)) { in_function = depth; first = FNR }
      }
      text = ""; carried = 0
    } else if (c == "}") {
      if (in_function == depth) {
        in_function = 0
        if (FNR - first + 1 >= limit) print FILENAME ":" first ": a function of " FNR - first + 1 " lines (under " limit ")"
        carried = 1  # could be a member's initialiser; the next character decides
      } else if (!in_function) carried = 0
      depth--; text = ""
    } else { text = ""; carried = 0 }
  }
  add(line)
  text = text " "
}
