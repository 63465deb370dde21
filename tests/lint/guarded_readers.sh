# Text from outside is read with limits (core/parse): no other JSON reader and no other regular expressions in core, plugins, apps and sdk.
source "$(dirname "$0")/lib.sh"
mapfile -t files < <(sources | grep -E '^(core|plugins|apps|sdk)/' | grep -v '^core/parse/')
[[ ${#files[@]} -gt 0 ]] || finish
while read -r line; do fault "$line"; done < <(printf '%s\n' "${files[@]}" | xargs awk -f "$(dirname "$0")/code_of.awk" -f "$(dirname "$0")/guarded_readers.awk")
finish
