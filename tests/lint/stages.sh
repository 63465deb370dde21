# A stage of a step shows in its signature what it reads and changes: only the wiring (run_parts) may take the whole RunParts,
# and only the loop of a run (run_loop, trainer, sft) an OpenRun, which holds them. Signatures of several lines count too.
source "$(dirname "$0")/lib.sh"
[[ -d core/train ]] || finish
while read -r line; do
  [[ -z $line ]] || fault "$line: takes the whole RunParts; take the groups of train/loop/parts.h that it needs"
done < <(find core/train \( -name '*.h' -o -name '*.cpp' \) -print | sort | LC_ALL=C xargs -r awk '
  function is_allowed(type) {
    if (type == "OpenRun") return FILENAME ~ /^core\/train\/loop\/(run_loop|trainer|sft)\.(h|cpp)$/
    return FILENAME ~ /^core\/train\/run\/run_parts\.(h|cpp)$/
  }
  function report() { if (found) print FILENAME ":" found; found = 0 }
  FNR == 1 { found = 0 }
  /^[ \t]*\/\// { next }
  {
    # The rest of a parameter may stand on the next line.
    if (found) { if ($0 ~ /^[ \t]*[a-z_]*[ \t]*([,)]|$)/) report(); found = 0 }
    line = $0
    while (match(line, /(RunParts|OpenRun)>? ?[&*]/)) {
      type = substr(line, RSTART, 7) == "OpenRun" ? "OpenRun" : "RunParts"
      before = RSTART > 1 ? substr(line, RSTART - 1, 1) : ""
      line = substr(line, RSTART + RLENGTH)
      if (before ~ /[A-Za-z_]/ || is_allowed(type)) continue
      found = FNR
      if (line ~ /^ ?[a-z_]*[,)]/) report()
      if (line !~ /^ ?[a-z_]*[ \t]*$/) found = 0
    }
  }')
finish
