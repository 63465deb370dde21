# Prints each TRY( after a comma in a braced list: if it returns, gcc does not destroy the earlier elements of the list. A pair
# of braces without a semicolon is a list; a block of statements has one.
FNR == 1 { depth = 0; delete commas; delete pending; delete is_block; delete parens }
/^[ \t]*#/ { next }  # preprocessor
{
  line = code_of($0)
  gsub(/TRY\(/, "\001(", line)
  for (before = ""; match(line, /[{};(),\001]/); before = c) {
    c = substr(line, RSTART, 1)
    if (RSTART > 1) before = substr(line, RSTART - 1, 1)
    line = substr(line, RSTART + 1)
    if (c == "{") {
      depth++
      commas[depth] = parens[depth] = is_block[depth] = 0; pending[depth] = ""
    } else if (c == "}") {
      if (!is_block[depth] && pending[depth] != "") printf "%s", pending[depth]
      depth--
    } else if (c == ";") is_block[depth] = 1
    else if (c == "(") parens[depth]++
    else if (c == ")") parens[depth]--
    else if (c == "," && parens[depth] == 0) commas[depth]++
    else if (c == "\001" && commas[depth] > 0 && before !~ /[A-Za-z0-9_]/)
      pending[depth] = pending[depth] FILENAME ":" FNR ": TRY behind a comma in braces leaks what stands before it; give its value a line of its own\n"
  }
}
