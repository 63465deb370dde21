#!/bin/bash
# abi_diff.sh SDK TESTS_SDK [--update]: the ABI that the headers give, against the stored description of each minor
# (tests/sdk/abi/1_N.abi). libabigail reads the types from the debugging data of a small C library, so it sees what
# layout_file.sh cannot: the types of fields and of the arguments of function pointers. Changes copies of the headers, too,
# to see that a change would be found. --update writes the description of the newest minor, and those that
# are missing; the others never change. Exits with 77 (skipped) if libabigail is missing.
set -euo pipefail
sdk=$1 tests=$2
for tool in abidw abidiff; do
  command -v "$tool" >/dev/null || { echo "abi_diff.sh: skipped: $tool is not installed (Debian: abigail-tools)"; exit 77; }
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "abi_diff.sh: $*" >&2; exit 1; }
newest=$(awk '$2 == "MORTISE_ABI_MINOR" { print $3 }' "$sdk/include/mortise/abi.h")
minors=$(seq 0 "$newest" | grep -vx '[12]')  # 1.1 and 1.2 are never used: abi.h

# all_headers HEADERS: mortise.h and every extension into all.c. A draft, which may change with any version, has its header
# in ext/draft/, and no compared header includes it.
all_headers() {
  { echo '#include "mortise/mortise.h"'
    for header in "$1"/mortise/ext/*.h; do echo "#include \"mortise/ext/$(basename "$header")\""; done
  } >"$scratch/all.c"
}

# drafts HEADERS: the names of drafts (their number is 0) that the compared headers have.
drafts() {
  all_headers "$1"
  gcc -std=c11 -E -dM -I"$1" "$scratch/all.c" | grep -oE '"mortise\.[a-z_]+/0"' || true
}

# library HEADERS MINOR OUT: a function for each struct, so that the library's ABI has all of them.
library() {
  local headers=$1 minor=$2 out=$3
  all_headers "$headers"
  gcc -std=c11 -E -P -DMORTISE_TARGET_MINOR="$minor" -I"$headers" "$scratch/all.c" |
    grep -oE 'typedef struct mortise_[a-z0-9_]+' | awk '{ print $3 }' | sort -u >"$scratch/structs"
  [[ $(wc -l <"$scratch/structs") -ge 25 ]] || fail "found too few structs"
  cp "$scratch/all.c" "$scratch/library.c"
  while read -r name; do
    echo "void use_$name(const $name* value);"
    echo "void use_$name(const $name* value) { (void)value; }"
  done <"$scratch/structs" >>"$scratch/library.c"
  gcc -std=c11 -g -O0 -gno-record-gcc-switches -fPIC -shared -Wall -Werror -DMORTISE_TARGET_MINOR="$minor" -I"$headers" \
    -o "$out" "$scratch/library.c"
}
describe() { abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed "$1" --out-file "$2"; }

if [[ ${3:-} == --update ]]; then
  for minor in $minors; do
    [[ $minor == "$newest" || ! -e $tests/abi/1_$minor.abi ]] || continue
    library "$sdk/include" "$minor" "$scratch/libabi.so"
    describe "$scratch/libabi.so" "$tests/abi/1_$minor.abi"
    echo "wrote tests/sdk/abi/1_$minor.abi"
  done
  exit 0
fi

found=$(drafts "$sdk/include")
[[ -z $found ]] || fail "the compared headers have the draft $found: move its header to sdk/include/mortise/ext/draft/"
for minor in $minors; do
  base=$tests/abi/1_$minor.abi
  [[ -s $base ]] || fail "there is no description of minor $minor: run abi_diff.sh SDK TESTS_SDK --update"
  library "$sdk/include" "$minor" "$scratch/libabi.so"
  abidiff "$base" "$scratch/libabi.so" >"$scratch/report" 2>&1 ||
    fail "the ABI of minor $minor has changed. Packs that were built with it would break:
$(head -n 60 "$scratch/report")"
done

# edited FILE SED: a copy of the headers with one edit.
edited() {
  rm -rf "$scratch/headers"
  cp -r "$sdk/include" "$scratch/headers"
  sed -i -E "$2" "$scratch/headers/mortise/$1"
  ! diff -r "$sdk/include" "$scratch/headers" >/dev/null || fail "'$2' changes nothing in $1"
}

# changed FILE SED: the test finds a change of the headers that keeps every size and offset.
changed() {
  edited "$1" "$2"
  library "$scratch/headers" "$newest" "$scratch/libabi.so"
  if abidiff "$tests/abi/1_$newest.abi" "$scratch/libabi.so" >"$scratch/report" 2>&1; then
    fail "'$2' in $1 was not noticed"
  fi
}
changed tensor.h 's/int32_t device_id;/uint32_t device_id;/'
changed pack.h 's/uint32_t num_params;/int32_t num_params;/'
changed kinds/reward.h 's/\(\*score\)\(void\* self, mortise_call\* call,/(*score)(mortise_call* call, void* self,/'
edited ext/row_text.h 's|mortise.row_text/1|mortise.row_text/0|'
[[ $(drafts "$scratch/headers") == '"mortise.row_text/0"' ]] || fail "a draft that mortise.h includes was not noticed"
echo "$(wc -w <<<"$minors") minors compared, $(wc -l <"$scratch/structs") structs; 3 changes noticed"
