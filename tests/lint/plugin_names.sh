# The engine knows no built-in plugin by name: core/ asks a plugin's table (flags, requires, roles) or its extensions. The names come from
# the macros in plugins/. A name that is also an ordinary word counts only as a text of its own, "length"; comments do not count.
# plugin_names_allowed.txt lists the exceptions with their reasons; one that is needed no more is a fault.
here=$(cd "$(dirname "$0")" && pwd)
source "$here/lib.sh"
words='abs choice code column cosine decoupled format http kl length mse native python real regex reinforce repetition replay reward_model vanilla'
mapfile -t names < <(grep -rhoE 'MORTISE_[A-Z_]+\("[a-z0-9_]+"|MORTISE_DESCRIPTOR\([a-z0-9_]+' plugins --include='*.cpp' | grep -oE '[a-z0-9_]+"?$' | tr -d '"' | sort -u)
[[ ${#names[@]} -gt 0 ]] || { fault "plugins: no plugin found"; finish; }
any=$(IFS='|' && echo "${names[*]}")
own=$(printf '%s\n' "${names[@]}" | grep -vxF -f <(tr ' ' '\n' <<<"$words") | paste -sd'|' || true)
declare -A reason used
while read -r path name why; do
  [[ -z $path || $path == '#'* ]] && continue
  [[ -n $why ]] || fault "plugin_names_allowed.txt: '$path $name' has no reason"
  reason["$path $name"]=$why
done < <(cat tests/lint/plugin_names_allowed.txt 2>/dev/null || true)

# judge FILE LINE NAME: a fault unless an exception covers it.
judge() {
  local key path name
  for key in "${!reason[@]}"; do
    path=${key% *} name=${key##* }
    # shellcheck disable=SC2053  # paths are patterns
    if [[ $1 == $path && ($name == '*' || $name == "$3") ]]; then
      used["$key"]=1
      return
    fi
  done
  fault "$1:$2: names the plugin '$3'; ask its table or an extension instead"
}
pattern="\"($any)\"${own:+|\\b($own)\\b}"
mapfile -t hits < <(sources | grep '^core/' | xargs grep -HnE "$pattern" || true)  # FILE:LINE:TEXT
# The names in each text without its comment, with the number of the hit.
while IFS=: read -r number name; do
  IFS=: read -r file line _ <<<"${hits[number - 1]}"
  judge "$file" "$line" "$name"
done < <(printf '%s\n' "${hits[@]}" | sed -E 's@^[^:]*:[0-9]*:@@; s@(^|[^:])//.*@\1@' | { grep -noE "$pattern" || true; } |
  tr -d '"' | sort -t: -k1,1n -k2 -u)
for key in "${!reason[@]}"; do
  [[ -n ${used["$key"]:-} ]] || fault "plugin_names_allowed.txt: '$key' is not needed"
done
finish
