# core/plugin/host/kinds/kinds.h has the list of all kinds of plugins. Other files of the engine and the program go through it:
# few of them may name most of the kinds, as texts or as ids. Comments do not count. The exceptions are what CONTRIBUTING.md names
# for a new kind.
source "$(dirname "$0")/lib.sh"
table=core/plugin/host/kinds/kinds.h
mapfile -t names < <(sed -nE 's/^ *\.name = "([a-z_]+)",$/\1/p' "$table" 2>/dev/null)
[[ ${#names[@]} -gt 0 ]] || { fault "$table: no kind is found in it"; finish; }
declare -A reason=(
  [$table]='the table'
  [core/conformance/case.h]='a bit of each kind, for the cases that test it'
  [core/train/run/check_plugins.cpp]='each kind has rules of its own with the settings of a run'
  [apps/mortise/plugin_eval.cpp]='each kind has a file format of its own'
  [apps/mortise/cmd_plugin.cpp]='each kind has its own setting that says where it runs'
)
most=3
while read -r count file; do
  [[ -n ${reason[$file]:-} || $count -le $most ]] || fault "$file: names $count kinds of plugins; go through kKinds ($table)"
done < <(sources | grep -E '^(core|apps)/' | xargs awk -v names="${names[*]}" '
  BEGIN { n = split(names, kind, " ") }
  FNR == 1 { if (count) print count, file; file = FILENAME; count = 0; delete seen }
  {
    sub(/(^|[ \t])\/\/.*/, "")
    for (i = 1; i <= n; ++i)
      if (!(i in seen) && (index($0, "\"" kind[i] "\"") || match($0, "MORTISE_KIND_" toupper(kind[i]) "[^A-Z_]"))) { seen[i] = 1; ++count }
  }
  END { if (count) print count, file }')
finish
