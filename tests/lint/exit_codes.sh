# docs/exit_codes.md has a row for every kind of error in core/foundation/base/result.h, and every exit code of apps/dev/lib.sh.
source "$(dirname "$0")/lib.sh"
while read -r name number; do
  if ! grep -qE "^\| $number \| \`$name\` \|" docs/exit_codes.md; then fault "docs/exit_codes.md: no row | $number | \`$name\` |"; fi
done < <(
  sed -nE 's/^ *(k[A-Za-z]+) = ([0-9]+),.*/\1 \2/p' core/foundation/base/result.h
  sed -nE '/^readonly exit_/s/([a-z_]+)=([0-9]+)/\n\1 \2\n/gp' apps/dev/lib.sh | grep '^exit_'
)
finish
