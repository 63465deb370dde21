# Text that the tree must not contain: paths of one machine, and package hosts (a mirror is a setting of the machine).
# The patterns are written so that they do not match themselves.
source "$(dirname "$0")/lib.sh"
patterns=(
  '/w[o]rk/(main|shared|[.])' '(^|[^[:alnum:]_.$}])/r[o]ot/' '(^|[^[:alnum:]_.$}])/h[o]me/[a-z]'
  'p[y]pi[.]org' 'p[y]thonhosted[.]org' 'd[e]b[.]debian[.]org' 's[n]apshot[.]debian[.]org' 's[e]curity[.]debian[.]org'
)
for pattern in "${patterns[@]}"; do
  while IFS= read -r line; do
    if [[ $line =~ /(me|you|user)[/\"] ]]; then continue; fi  # nobody's: an example
    [[ -z $line ]] || fault "${line:0:160}"
  done < <(texts | grep -v '^LICENSE$' | xargs -r grep -InE -e "$pattern" /dev/null || true)
done
finish
