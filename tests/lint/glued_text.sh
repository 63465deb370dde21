# A text of three or more pieces is written with fmt::format: its words then stand in one piece, where a reader and a search find them.
# Not in core/parse, which packs link: they do not link fmt. Not in headers, where <fmt/core.h> would cost each file that includes them.
source "$(dirname "$0")/lib.sh"
folders=()
for folder in core apps/mortise; do
  if [[ -d $folder ]]; then folders+=("$folder"); fi
done
[[ ${#folders[@]} -gt 0 ]] || finish
while read -r line; do
  [[ -z $line ]] || fault "$line: a text is glued from three pieces; use fmt::format"
done < <(find "${folders[@]}" -name '*.cpp' ! -path 'core/parse/*' -print | sort |
  LC_ALL=C xargs -r awk -f "$(dirname "$0")/glued_text.awk")
finish
