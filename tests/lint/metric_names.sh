# The table of metrics promises no number that nobody writes: each word of a name in core/foundation/metrics/names.cpp
# (patterns with {...} aside) is in a text of another source, or is a statistic that a summary adds.
source "$(dirname "$0")/lib.sh"
table=core/foundation/metrics/names.cpp
[[ -f $table ]] || finish
words=$(find core plugins \( -name '*.h' -o -name '*.cpp' \) ! -path "$table" -print0 2>/dev/null |
  LC_ALL=C xargs -0 -r grep -hoE '"([^"\\]|\\.)*"' | grep -oE '[A-Za-z0-9_]+' | sort -u)
while read -r name; do
  for word in ${name//\// }; do
    case $word in mean | max | min | std) continue ;; esac
    grep -qxF -- "$word" <<<"$words" || fault "$table: nothing writes $name (no text has the word $word)"
  done
done < <(grep -oE '^    \{"[A-Za-z0-9_/]+", "' "$table" | cut -d'"' -f2)
finish
