# A pipe into a reader that leaves early (head, grep -q, grep -m) kills its writer by SIGPIPE once the text outgrows a buffer; under
# pipefail the line then fails on some machines only. Read all (grep >/dev/null), or read from a variable (<<<).
source "$(dirname "$0")/lib.sh"
mapfile -t files < <(texts | grep -E '(\.sh|^dev|^\.ci/run)$')
[[ ${#files[@]} -gt 0 ]] || finish
early='(^|[^|])\|[[:space:]]*(head[[:space:]]+-|head[[:space:]]*[)]?$|grep[[:space:]]+(-[[:alpha:]]+[[:space:]]+)*-[[:alpha:]]*[qm][[:alpha:]]*[[:space:]])'
while IFS= read -r line; do fault "${line:0:160}: its reader leaves early"; done \
  < <(grep -HnE -e "$early" "${files[@]}" | grep -vE '^[^:]+:[0-9]+:[[:space:]]*#' || true)
finish
