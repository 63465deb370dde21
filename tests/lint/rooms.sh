# docs/architecture.md says which rooms core/ has: its table and the folders must agree, each with a number of its level. And every
# file or folder of the tree that a page names in backticks must be there.
# rooms.sh --table: the table as lines "LEVEL ROOM LIBTORCH", for directions.sh.
pages_of_rooms="$(dirname "${BASH_SOURCE[0]}")/../../docs/architecture.md"
table() { sed -n 's/^| *\(-\?[0-9][0-9]*\) *| *`\([a-z_]*\)` *|.*| *\(yes\|no\) *|$/\1 \2 \3/p' "$1"; }
if [[ $1 == --table ]]; then
  table "$pages_of_rooms"
  exit 0
fi
source "$(dirname "$0")/lib.sh"
if [[ -f docs/architecture.md ]]; then
  told=$(table docs/architecture.md | cut -d' ' -f2 | sort)
  there=$(find core -mindepth 1 -maxdepth 1 -type d | sed 's|^core/||' | sort)
  while read -r room; do fault "docs/architecture.md: the room '$room' is not in core/"; done < <(comm -23 <(echo "$told") <(echo "$there") | sed '/^$/d')
  while read -r room; do fault "core/$room: docs/architecture.md has no row for it"; done < <(comm -13 <(echo "$told") <(echo "$there") | sed '/^$/d')
fi
# A name with a placeholder (NAME, acme) or a pattern (<kind>, *, {a,b}) names no file.
while IFS=: read -r page line path; do
  [[ -e $path || -e $path.h || -e $path.cpp || -e $path.py ]] || fault "$page:$line: there is no $path"
done < <(texts | grep '\.md$' | xargs -r grep -noE '`(core|plugins|sdk|configs|apps|tests|docs|cmake|third_party_notes)/[A-Za-z0-9_./-]+`' /dev/null |
  sed 's/`//g' | grep -vE "[A-Z]{3}|acme" || true)
finish
