# If TRY( is the second or a later element of a braced list and returns, gcc leaks the earlier elements. Give each such
# value a line of its own.
source "$(dirname "$0")/lib.sh"
mapfile -t files < <(sources)
[[ ${#files[@]} -gt 0 ]] || finish
while read -r line; do fault "$line"; done < <(printf '%s\n' "${files[@]}" | xargs awk -f "$(dirname "$0")/code_of.awk" -f "$(dirname "$0")/braced_try.awk")
finish
