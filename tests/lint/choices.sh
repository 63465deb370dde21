# A choice of a key is an enum behind the loader: the rooms that run, and conformance, compare no text with one of the choices in
# core/config/keys. A text may be compared where it becomes an enum: parameters of plugins (plugin/host/params.cpp). The names of
# fields in a line of metrics.jsonl (train/report/run_log.cpp) are no choices.
source "$(dirname "$0")/lib.sh"
[[ -d core/config/keys ]] || finish
choices=$(find core/config/keys -name '*.h' -print0 | sort -z | xargs -0 cat | tr '\n' ' ' |
  grep -oE 'choice_names\([A-Za-z0-9]+\) *\{[^}]*\{[^}]*\}' | grep -oE '"[a-z0-9_-]+"' | tr -d '"' | sort -u | paste -sd'|' || true)
[[ -n $choices ]] || fault "core/config/keys: no choices are found in it"
folders=()
for room in train learn experience generate checkpoint dist conformance plugin; do
  if [[ -d core/$room ]]; then folders+=("core/$room"); fi
done
[[ ${#folders[@]} -gt 0 && -n $choices ]] || finish
while read -r line; do
  [[ -z $line ]] || fault "$(cut -d: -f1,2 <<<"$line"): compares a text with a choice of a key; compare the enum"
done < <(grep -rnE "(==|!=) \"($choices)\"|\"($choices)\" (==|!=)" "${folders[@]}" --include='*.h' --include='*.cpp' |
  grep -vE '^core/(plugin/host/params|train/report/run_log)\.cpp:|^[^:]*:[0-9]*: *//' || true)
finish
