# clang-format 14 would change nothing. Ends with 77 (skipped) where clang-format-14 is not installed.
source "$(dirname "$0")/lib.sh"
command -v clang-format-14 >/dev/null || { echo "skipped: clang-format-14 is not installed"; exit 77; }
while read -r file; do
  if [[ -n $file ]]; then fault "$file: not formatted (./dev format)"; fi
done < <(sources | xargs -r clang-format-14 --dry-run --Werror 2>&1 | sed -nE 's/^([^:]+):[0-9]+:[0-9]+: error: code should be.*/\1/p' | sort -u || true)
finish
