#!/bin/bash
# frozen.sh SDK TESTS_SDK [--update]: what the released minors of ABI 1 promised still holds in today's headers.
# tests/sdk/abi/1_N.txt has every size, offset, number and declaration of 1.N. They must be where and what they were, with
# the names of arguments: two of one type may not change places. A struct may have grown at its end, except for the
# leaves, which have no struct_size. Changes copies of the headers, too, to see that each kind of change is found.
# --update writes the file of the newest minor if it has none; a written file never changes.
set -euo pipefail
sdk=$1 tests=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "frozen.sh: $*" >&2; exit 1; }

# facts INCLUDE: the lines of layout.awk, `declares STRUCT DECLARATION` for each field, and `value NAME TEXT` for each
# number and name of the headers.
facts() {
  echo '#include "mortise/mortise.h"' >"$scratch/all.c"
  gcc -std=c11 -E -P -I"$1" "$scratch/all.c" | sed 's/[{};]/&\n/g' | tr '\n' ' ' |
    sed -E 's/typedef struct/\n&/g; s/\}/\n}\n/g' >"$scratch/structs"
  awk -f "$tests/layout.awk" "$scratch/structs" >"$scratch/print.c"
  awk '/^typedef struct [a-z0-9_]+ \{/ {
      name = $3; body = $0; sub(/^[^{]*\{/, "", body); n = split(body, fields, ";")
      for (i = 1; i <= n; ++i) {
        gsub(/[ \t]+/, " ", fields[i]); gsub(/ ?[(] ?/, "(", fields[i]); gsub(/ ?[)] ?/, ")", fields[i])
        gsub(/ ?[*]/, "*", fields[i]); gsub(/ ?, ?/, ", ", fields[i]); gsub(/^ | $/, "", fields[i])
        if (fields[i] != "") print "declares " name " " fields[i]
      }
    }' "$scratch/structs"
  gcc -std=c11 -I"$1" -o "$scratch/print" "$scratch/print.c" && "$scratch/print"
  gcc -std=c11 -E -dM -I"$1" "$scratch/all.c" | sed -nE 's/^#define (MORTISE_[A-Z0-9_]+) ("[^"]*"|[0-9]+u?)$/value \1 \2/p' |
    grep -vE ' MORTISE_((ABI|TARGET|PACK|MIN_HOST)_MINOR) ' | sort
}

# broken FACTS [MINOR]: the promises of 1.MINOR that the facts do not keep.
broken() {
  awk '
    NR == FNR {
      if ($1 == "struct") size[$2] = $3; else now[$0] = 1
      if ($1 ~ /\.struct_size$/) { split($1, p, "."); grows[p[1]] = 1 }
      if ($1 ~ /\./) at[$1] = $2
      next
    }
    $1 ~ /\./ { had[$1] = 1 }
    $1 == "struct" {
      old_size[$2] = $3
      if (!($2 in size)) print $2 " is gone"
      else if (size[$2] < $3 || (size[$2] > $3 && !($2 in grows))) print $2 " has " size[$2] " bytes, not " $3
      next
    }
    !($0 in now) { print "changed or gone: " $0 }
    END {
      for (field in at) {
        split(field, p, ".")
        if (!(field in had) && (p[1] in old_size) && at[field] < old_size[p[1]]) print "lies within the old struct: " field
      }
    }
  ' "$1" "$tests/abi/1_${2:-0}.txt"
}

newest=$(awk '$2 == "MORTISE_ABI_MINOR" { print $3 }' "$sdk/include/mortise/abi.h")
if [[ ${3:-} == --update ]]; then
  written=$tests/abi/1_$newest.txt
  [[ ! -e $written ]] || fail "$written is frozen"
  facts "$sdk/include" >"$scratch/facts"
  mv "$scratch/facts" "$written"
  echo "wrote $written: $(wc -l <"$written") lines"
  exit 0
fi
facts "$sdk/include" >"$scratch/facts"
for minor in $(seq 0 "$newest" | grep -vx '[12]'); do  # 1.1 and 1.2 are never used: abi.h
  [[ -s $tests/abi/1_$minor.txt ]] || fail "minor $minor is not written: run frozen.sh SDK TESTS_SDK --update"
  [[ $(wc -l <"$tests/abi/1_$minor.txt") -ge 700 ]] || fail "tests/sdk/abi/1_$minor.txt has too few lines"
  found=$(broken "$scratch/facts" "$minor")
  [[ -z $found ]] || fail "ABI 1.$minor is frozen, and packs rely on what has changed:
$found"
done
# No struct ends with a hole: a later field in it would not change struct_size.
holes=$(awk '/^struct/ { if (name != "" && end != size) print name; name = $2; size = $3; end = 0 }
  $1 ~ /\./ && $1 !~ /^value/ { end = $2 + $3 } END { if (end != size) print name }' <(grep -vE '^(value|declares)' "$scratch/facts"))
[[ -z $holes ]] || fail "these structs end with a hole; add a field padding: $holes"

# noticed FILE SED TEXT: the change of a header is found, and the text names it.
noticed() {
  rm -rf "$scratch/headers"
  cp -r "$sdk/include" "$scratch/headers"
  sed -i -E "$2" "$scratch/headers/mortise/$1"
  ! diff -rq "$sdk/include" "$scratch/headers" >/dev/null || fail "'$2' changes nothing in $1"
  facts "$scratch/headers" >"$scratch/changed"
  grep -qF -- "$3" <<<"$(broken "$scratch/changed")" || fail "'$2' in $1 was not noticed"
}
noticed kinds/reward.h 's/(MORTISE_FINISH_LENGTH) 1/\1 2/' "value MORTISE_FINISH_LENGTH 1"
noticed ext/state.h 's|mortise.state/1|mortise.state/2|' 'value MORTISE_EXT_STATE "mortise.state/1"'
noticed kinds/reward.h 's/^(  int64_t step; .*)/  int64_t earlier;\n\1/' "mortise_reward_in.step"
noticed tensor.h 's/^(  uint64_t byte_offset;)/\1 uint64_t more;/' "mortise_tensor has 56 bytes"
noticed pack.h 's/^(  const void\* vtable;).*/\1 int32_t x, y;/' "mortise_descriptor.update_metrics"
noticed ext/device.h 's/^(  uint32_t num_device_types;.*)/\1\n  uint32_t rank;/' "lies within the old struct: mortise_device.rank"
noticed host.h 's/double sum, double weight/double weight, double sum/' "declares mortise_host void(*metric)"
# A field at the end of a growing struct is no change.
rm -rf "$scratch/headers" && cp -r "$sdk/include" "$scratch/headers"
sed -i -E 's/^(  const int32_t\* device_types;.*)/\1\n  int64_t later;/' "$scratch/headers/mortise/ext/device.h"
facts "$scratch/headers" >"$scratch/grown"
grep -q "mortise_device.later" "$scratch/grown" || fail "the struct did not grow"
[[ -z $(broken "$scratch/grown") ]] || fail "growth at the end is taken for a change: $(broken "$scratch/grown")"
echo "$(wc -l <"$tests/abi/1_0.txt") facts of ABI 1.0 hold; 7 changes noticed"
