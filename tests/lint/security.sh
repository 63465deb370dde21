# Every test in SECURITY.md's table of attacks exists.
source "$(dirname "$0")/lib.sh"
while read -r suite name; do
  if ! grep -rqE "^TEST(_F|_P)?\($suite, $name\)" tests --include='*.cpp'; then fault "SECURITY.md: there is no test $suite.$name"; fi
done < <(sed -n '/^## Attacks/,/^## /p' SECURITY.md | grep -oE '`[A-Za-z]+\.[A-Za-z0-9]+`' | tr -d '`' | tr '.' ' ')
finish
