# A stage of a step shows in its signature what it reads and changes: only the wiring (run_parts) may take the whole RunParts.
source "$(dirname "$0")/lib.sh"
[[ -d core/train ]] || finish
while read -r line; do
  [[ -z $line ]] || fault "$line: takes the whole RunParts; take the groups of train/loop/parts.h that it needs"
done < <(grep -rnE "\bRunParts ?[&*] ?[a-z_]*[,)]" core/train --include='*.h' --include='*.cpp' |
  grep -vE '^core/train/run/run_parts\.(h|cpp):' || true)
finish
