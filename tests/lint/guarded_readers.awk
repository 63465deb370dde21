# For guarded_readers.sh. Input: sources; output: "file:line: what".
function fault(text) { print FILENAME ":" FNR ": " text }
FNR == 1 { names = "json|Json|ordered_json|basic_json" }
{
  code = code_of($0)
  # Another name for the library's type.
  if (match(code, /using +[A-Za-z_0-9]+ *= *(::)?nlohmann::[a-z_]*json *;/)) {
    alias = substr(code, RSTART, RLENGTH); sub(/using +/, "", alias); sub(/ *=.*/, "", alias)
    names = names "|" alias
  }
  reader = "(^|[^A-Za-z0-9_])(" names ")(<[^>]*>)?::(parse|accept|sax_parse|from_[a-z0-9]+)[^A-Za-z0-9_]"
  if (code " " ~ reader || code ~ /sax_parse/) fault("JSON is read with parse_json (core/parse/json.h), which has limits")
  if (code ~ /(^|[^A-Za-z0-9_])_json([^A-Za-z0-9_(]|$)/) fault("JSON literals have no limits; use parse_json (core/parse/json.h)")
  if (code ~ />> *[a-z_]*json([^A-Za-z0-9_]|$)/) fault("JSON is read with parse_json (core/parse/json.h), not from a stream")
  if (code ~ /std::(basic_)?[cw]?regex|std::wregex|(^|[^A-Za-z0-9_])regcomp *\(|boost::(regex|xpressive)|pcre2?_(compile|match|exec)/ ||
      code ~ /# *include *[<"](regex|regex\.h|pcre.*\.h|boost\/(regex|xpressive).*|re2\/.*)[>"]/)
    fault("regular expressions are those of core/parse/pattern.h, which have limits")
}
