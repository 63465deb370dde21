# docs/architecture.md says which rooms core/ has: its table and the folders must agree, each with a number of its level.
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
finish
