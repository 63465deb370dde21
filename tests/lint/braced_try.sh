# A braced list whose second or later element is a TRY( leaks the earlier ones where that returns (gcc): each such value gets a line of its own.
source "$(dirname "$0")/lib.sh"
mapfile -t files < <(sources)
[[ ${#files[@]} -gt 0 ]] || finish
while read -r line; do fault "$line"; done < <(printf '%s\n' "${files[@]}" | xargs awk -f "$(dirname "$0")/code_of.awk" -f "$(dirname "$0")/braced_try.awk")
finish
