#!/bin/bash
# headers_alone.sh SDK_INCLUDE TESTS_SDK: compiles every SDK header alone and twice, pedantically, in C17 and C++17. That shows
# what a header does not include, best in the oldest C++, whose library brings least along, and the same for every compiler:
# clang does it, which is faster, or gcc if there is no clang. With MORTISE_LONG both do it. Each compiler of this machine gets
# all headers in one source, in every version of the languages. Prints what it tried, and says which compiler is missing.
set -u
include=$1 tests=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
faults=0
try() { # compiler standard language file
  # c++23 was called c++2b by the compilers of 2022
  if ! "$1" -std="${2/c++23/c++2b}" -x "$3" -Wall -Wextra -pedantic -Werror -Wno-pragma-once-outside-header -fsyntax-only -I"$include" \
    -DMORTISE_PACK_ID='"t"' -DMORTISE_PACK_VERSION='"0.0.0"' "$4" 2>"$scratch/log"; then
    echo "$1 -std=$2 $4:" && head -n 20 "$scratch/log"
    faults=$((faults + 1))
  fi
}
tried=0 alone=1
for pair in clang:clang++ gcc:g++; do
  c=${pair%:*} cxx=${pair#*:}
  if ! command -v "$c" >/dev/null || ! command -v "$cxx" >/dev/null; then
    echo "$c is not installed: not tried"
    continue
  fi
  : >"$scratch/all.c"
  for header in $(cd "$include" && find mortise -name '*.h'); do
    printf '#include <%s>\n#include <%s>\n' "$header" "$header" | tee -a "$scratch/all.c" >"$scratch/one.c"
    [[ -n $alone ]] || continue
    try "$c" c17 c "$scratch/one.c"
    try "$cxx" c++17 c++ "$scratch/one.c"
    tried=$((tried + 1))
  done
  # torch.hpp needs libtorch: tests/sdk/torch_vanilla.cpp compiles it.
  cp "$scratch/all.c" "$scratch/all.cpp"
  for header in $(cd "$include" && find mortise/cpp -name '*.hpp' ! -name torch.hpp); do
    printf '#include <%s>\n#include <%s>\n' "$header" "$header" | tee -a "$scratch/all.cpp" >"$scratch/one.cpp"
    [[ -n $alone ]] || continue
    try "$cxx" c++17 c++ "$scratch/one.cpp"
    tried=$((tried + 1))
  done
  for standard in c11 c17; do try "$c" "$standard" c "$scratch/all.c"; done
  for standard in c++17 c++20 c++23; do try "$cxx" "$standard" c++ "$scratch/all.cpp"; done
  for standard in c11 c17; do try "$c" "$standard" c "$tests/layout.c"; done
  alone=${MORTISE_LONG:-}
done
echo "$tried headers tried, $faults faults"
[[ $tried -gt 0 && $faults -eq 0 ]]
