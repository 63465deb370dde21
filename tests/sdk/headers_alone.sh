#!/bin/bash
# headers_alone.sh SDK_INCLUDE TESTS_SDK: compiles every SDK header alone and twice, pedantically, in each supported
# language version, with each compiler of this machine. Prints what it tried, and says if clang is missing.
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
tried=0
for pair in gcc:g++ clang:clang++; do
  c=${pair%:*} cxx=${pair#*:}
  if ! command -v "$c" >/dev/null || ! command -v "$cxx" >/dev/null; then
    echo "$c is not installed: not tried"
    continue
  fi
  for header in $(cd "$include" && find mortise -name '*.h'); do
    printf '#include <%s>\n#include <%s>\n' "$header" "$header" >"$scratch/one.c"
    for standard in c11 c17; do try "$c" "$standard" c "$scratch/one.c"; done
    for standard in c++17 c++20 c++23; do try "$cxx" "$standard" c++ "$scratch/one.c"; done
    tried=$((tried + 1))
  done
  # torch.hpp needs libtorch: tests/sdk/torch_vanilla.cpp compiles it.
  for header in $(cd "$include" && find mortise/cpp -name '*.hpp' ! -name torch.hpp); do
    printf '#include <%s>\n#include <%s>\n' "$header" "$header" >"$scratch/one.cpp"
    for standard in c++17 c++20 c++23; do try "$cxx" "$standard" c++ "$scratch/one.cpp"; done
    tried=$((tried + 1))
  done
  for standard in c11 c17; do try "$c" "$standard" c "$tests/layout.c"; done
done
echo "$tried headers tried, $faults faults"
[[ $tried -gt 0 && $faults -eq 0 ]]
