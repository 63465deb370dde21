# The table of metrics promises no number that nobody writes: each name in core/foundation/metrics/names.cpp (patterns with
# {...} aside) is a text of another source, as it is or without the statistic that a summary adds. It may also be joined
# from two texts, or be a text with {} that other texts fill.
source "$(dirname "$0")/lib.sh"
table=core/foundation/metrics/names.cpp
[[ -f $table ]] || finish
while read -r name; do
  [[ -z $name ]] || fault "$table: nothing writes $name (no text has this name or its parts)"
done < <({
  find core plugins \( -name '*.h' -o -name '*.cpp' \) ! -path "$table" -print0 2>/dev/null |
    LC_ALL=C xargs -0 -r grep -hvE '^[ \t]*//' | grep -oE '"([^"\\]|\\.)*"' | tr -d '"' | tr '=' '\n' | grep -xE '[A-Za-z0-9_/{}]+' | sort -u
  echo '='
  grep -oE '^    \{"[A-Za-z0-9_/]+", "' "$table" | cut -d'"' -f2
} | LC_ALL=C awk '
  function is_filled(name, i, at, rest) {  # by one text between the two halves of a text with {}
    for (i = 1; i <= num_patterns; ++i) {
      at = index(patterns[i], "{}")
      rest = substr(patterns[i], at + 2)
      if (length(name) <= length(patterns[i]) - 2 || rest ~ /\{/) continue
      if (substr(name, 1, at - 1) == substr(patterns[i], 1, at - 1) && substr(name, length(name) - length(rest) + 1) == rest &&
          substr(name, at, length(name) - length(patterns[i]) + 2) in texts) return 1
    }
    return 0
  }
  function is_written(name, i) {
    if (name in texts || is_filled(name)) return 1
    for (i = 1; i < length(name); ++i)
      if (substr(name, 1, i) in texts && substr(name, i + 1) in texts) return 1
    return 0
  }
  /^=$/ { is_table = 1; next }
  !is_table { texts[$0] = 1; if (index($0, "{}")) patterns[++num_patterns] = $0; next }
  { base = $0; sub(/[\/_](mean|max|min|std)$/, "", base); if (!is_written($0) && !is_written(base)) print }')
finish
