#!/bin/bash
# layout_file.sh SDK TESTS_SDK [--update]: sdk/layout.txt has the size of every ABI struct and the offset and size of every
# field. It is made from the headers (layout.awk) and compared as C11 and C++17, with each compiler that is here; the Rust
# crate reads the same file. --update writes it; a change of a released minor's lines breaks packs.
set -euo pipefail
sdk=$1 tests=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
echo '#include "mortise/mortise.h"' >"$scratch/all.c"
gcc -std=c11 -E -P -I"$sdk/include" "$scratch/all.c" | sed 's/[{};]/&\n/g' | tr '\n' ' ' | sed -E 's/typedef struct/\n&/g; s/\}/\n}\n/g' |
  awk -f "$tests/layout.awk" >"$scratch/print.c"
[[ $(grep -c 'struct mortise_' "$scratch/print.c") -ge 25 ]] || { echo "layout.awk found too few structs" >&2; exit 1; }
faults=0 tried=0
for pair in "gcc c c11" "g++ c++ c++17" "clang c c11" "clang++ c++ c++17"; do
  read -r compiler language standard <<<"$pair"
  command -v "$compiler" >/dev/null || { echo "$compiler is not installed: not tried"; continue; }
  "$compiler" -std="$standard" -x "$language" -I"$sdk/include" -o "$scratch/print" "$scratch/print.c"
  "$scratch/print" >"$scratch/layout.txt"
  if [[ ${3:-} == --update ]]; then
    cp "$scratch/layout.txt" "$sdk/layout.txt"
    echo "wrote sdk/layout.txt: $(wc -l <"$sdk/layout.txt") lines"
    exit 0
  fi
  diff -u "$sdk/layout.txt" "$scratch/layout.txt" || { echo "$compiler lays structs out otherwise than sdk/layout.txt"; faults=1; }
  tried=$((tried + 1))
done
echo "$(wc -l <"$sdk/layout.txt") lines compared, $tried compilers"
[[ $tried -gt 0 && $faults -eq 0 ]]
