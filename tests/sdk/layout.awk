# Reads the preprocessed ABI headers and writes a C program that prints every struct's size and every field's offset and
# size, so that no field can be forgotten: `struct NAME size`, `NAME.field offset size`.
BEGIN {
  print "#include <stdio.h>\n#include \"mortise/mortise.h\"\nint main(void) {"
}
/typedef struct [a-z_]+ \{/ { name = $3; body = ""; inside = 1; sub(/.*\{/, "") }
inside {
  body = body " " $0
  if ($0 !~ /\}/) next
  inside = 0
  sub(/\}.*/, "", body)
  emit(name, body)
}
function emit(name, body, fields, n, i, k, m, field, parts) {
  printf "  printf(\"struct %s %%zu\\n\", sizeof(%s));\n", name, name
  n = split(body, fields, ";")
  for (i = 1; i <= n; ++i) {
    field = fields[i]
    if (field !~ /[^ \t]/) continue
    if (match(field, /\(\*[a-z0-9_]+\)/)) {
      print_field(name, substr(field, RSTART + 2, RLENGTH - 3))
      continue
    }
    m = split(field, parts, ",")
    for (k = 1; k <= m; ++k) {
      sub(/[ \t]+$/, "", parts[k])
      match(parts[k], /[a-z0-9_]+$/)
      print_field(name, substr(parts[k], RSTART, RLENGTH))
    }
  }
}
function print_field(name, field) {
  printf "  printf(\"%s.%s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s*)0)->%s));\n", name, field, name, field, name, field
}
END { print "  return 0;\n}" }
