# Who may include what (docs/architecture.md). Rooms of core/ include only rooms of a lower level. sdk/ includes only
# itself. plugins/ include only the SDK, their own folder, plugins/shared, core/parse and core/sandbox. Only some
# rooms include libtorch, and never its all-in-one headers.
source "$(dirname "$0")/lib.sh"
rooms=$(cd "$OLDPWD" && bash "$(dirname "$0")/rooms.sh" --table | tr "\n" ";")
faults=$(sources | xargs -r awk -v rooms="$rooms" '
  BEGIN {
    n = split(rooms, rows, ";")
    for (i = 1; i <= n; i++) { split(rows[i], row, " "); level[row[2]] = row[1]; if (row[3] == "yes") torch_rooms = torch_rooms " " row[2] " " }
  }
  function fault(text) { print FILENAME ":" FNR ": " text }
  # May this file include libtorch?
  function may_have_torch(file, part) {
    split(file, part, "/")
    if (file ~ /^cmake\// || file ~ /^sdk\/include\/mortise\/cpp\/torch\.hpp$/ || file ~ /_torch\.(cpp|h)$/) return 1
    if (part[1] == "core") return index(torch_rooms, " " part[2] " ") > 0
    if (part[1] == "tests") return part[2] != "unit" || index(torch_rooms, " " part[3] " ") > 0
    return part[1] == "apps"
  }
  FILENAME == "sdk/include/mortise/cpp/torch.hpp" { next }  # for authors of torch-locked packs; Mortise itself does not include it
  /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    line = $0; sub(/^[^<"]*/, "", line)
    quoted = substr(line, 1, 1) == "\""; path = substr(line, 2); sub(/[>"].*/, "", path)
    split(FILENAME, me, "/"); split(path, it, "/"); target = it[1]
    if (path ~ /^(torch\/(torch|extension|all|script)\.h|ATen\/ATen\.h)$/) fault("<" path "> costs seconds in every file; include the operators that are used")
    else if (target ~ /^(torch|ATen|c10|caffe2)$/ && !may_have_torch(FILENAME)) fault("libtorch (" path ") is not for this folder")
    if (path ~ /(^|\/)\.\.\// && (me[1] == "core" || me[1] == "apps" || (me[1] == "plugins" && path !~ /^(\.\.\/)?\.\.\/shared\//))) fault("\"" path "\" leaves its folder; write it from the root of the includes")
    if (!quoted) next
    if (me[1] == "core" && target in level && target != me[2] && level[target] + 0 >= level[me[2]] + 0)
      fault("core/" me[2] " may not include core/" target " (its level is " (level[target] == level[me[2]] ? "the same" : "higher") ")")
    if (me[1] == "core" && !(target in level) && target != "mortise" && it[2] != "") fault("\"" path "\" is of no room of core/ nor of the SDK")
    if (me[1] == "sdk" && target in level) fault("the SDK includes itself and the standard library only, not core/" target)
    if (me[1] == "plugins" && (target in level) && target !~ /^(parse|sandbox)$/) fault("a plugin includes the SDK, core/parse and core/sandbox only, not core/" target)
  }
')
[[ -z $faults ]] || while read -r line; do fault "$line"; done <<<"$faults"
finish
