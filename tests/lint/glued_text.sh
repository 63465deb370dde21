# A text of three or more pieces is written with fmt::format: its words then stand in one piece, where a reader and a search find them.
# Not in core/parse, which packs link: they do not link fmt.
source "$(dirname "$0")/lib.sh"
folders=()
for folder in core apps/mortise; do
  if [[ -d $folder ]]; then folders+=("$folder"); fi
done
while read -r line; do
  [[ -z $line ]] || fault "$(cut -d: -f1,2 <<<"$line"): a text is glued from three pieces; use fmt::format"
done < <(grep -rnE '" \+ [^"]*\+ "' "${folders[@]}" --include='*.cpp' | grep -vE '^core/parse/|^[^:]*:[0-9]*: *//' || true)
finish
