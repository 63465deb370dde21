#!/bin/bash
# docs_examples.sh DOCS PREFIX: the examples of docs/plugins (```cpp pack blocks), each at most 40 lines, built as packs
# against the installed SDK with warnings on, and accepted by the program; with MORTISE_LONG also by `plugin check`.
# nvcc, if there is one, compiles those that accept CUDA.
set -euo pipefail
docs=$1 prefix=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "docs_examples.sh: $*" >&2; exit 1; }
cuda=
! nvcc --version >/dev/null 2>&1 || cuda=CUDA
export CUDAFLAGS="-Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror"
{
  echo 'cmake_minimum_required(VERSION 3.25)'
  echo "project(examples VERSION 1.0.0 LANGUAGES C CXX $cuda)"
  echo 'find_package(mortise-sdk REQUIRED)'
  [[ -z $cuda ]] || echo 'find_package(CUDAToolkit REQUIRED)'
} >"$scratch/CMakeLists.txt"
kinds=$(cd "$docs" && grep -lE '^```cpp pack$' ./*.md | sed 's|^\./||; s|\.md$||')
[[ $(wc -l <<<"$kinds") -ge 7 ]] || fail "only these pages have an example: $kinds"
# KIND.cpp is the first example of KIND.md, KIND-2.cpp the next one.
for kind in $kinds; do
  awk -v to="$scratch/$kind" '/^```cpp pack$/ { on = 1; file = to (count++ ? "-" count : "") ".cpp"; next }
    /^```/ { on = 0 } on { print >file }' "$docs/$kind.md"
done
examples=$(cd "$scratch" && ls -- *.cpp | sed 's|\.cpp$||')
num_cuda=0
for example in $examples; do
  source=$example.cpp
  lines=$(wc -l <"$scratch/$source")
  [[ $lines -gt 0 && $lines -le 40 ]] || fail "${example%-*}.md: an example has $lines lines (1 to 40)"
  if grep -q 'accepts_cuda = true' "$scratch/$source"; then
    num_cuda=$((num_cuda + 1))
    [[ -z $cuda ]] || { mv "$scratch/$source" "$scratch/$example.cu" && source="$example.cu LIBS CUDA::cudart_static"; }
  fi
  echo "mortise_add_pack(docs.${example//_/-} SOURCES $source)" >>"$scratch/CMakeLists.txt"
done
[[ $num_cuda -gt 0 ]] || fail "no page has an example that accepts CUDA"
cmake -S "$scratch" -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" >"$scratch/log" 2>&1 || fail "$(tail -n 20 "$scratch/log")"
cmake --build "$scratch/build" >"$scratch/log" 2>&1 || fail "$(tail -n 40 "$scratch/log")"
for example in $examples; do
  kind=${example%-*} id=docs.${example//_/-}
  names=$(awk '/^MORTISE_PACK\(/ { on = 1 } on' "$scratch/$example".c* | grep -oE '\("[a-z0-9_]+"' | tr -d '("')
  [[ $kind == packs || $(wc -l <<<"$names") == 1 ]] || fail "$kind.md: its pack has other plugins too: $names"
  for name in $names; do
    "$prefix/bin/mortise" plugin describe "$id/$name" --plugin-path "$scratch/build/lib/mortise/packs" \
      >"$scratch/log" 2>&1 || fail "$kind: $(cat "$scratch/log")"
    # What the page writes into a config is this plugin.
    grep -q "= \"$name\"" "$docs/$kind.md" || fail "$kind.md: its config does not name '$name'"
  done
  [[ -z ${MORTISE_LONG:-} ]] ||
    "$prefix/bin/mortise" plugin check "$scratch/build/lib/mortise/packs/$id.so" >"$scratch/log" 2>&1 ||
    fail "$kind: $(cat "$scratch/log")"
done
listed=$("$prefix/bin/mortise" plugin list --plugin-path "$scratch/build/lib/mortise/packs")
for name in length_bonus one_word plain_gradient; do
  grep -q "\b$name\b" <<<"$listed" || fail "plugin list leaves out $name of the pack of several: $listed"
done
echo "docs: $(wc -l <<<"$examples") examples of $(wc -l <<<"$kinds") pages build and load"
