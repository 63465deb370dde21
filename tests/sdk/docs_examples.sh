#!/bin/bash
# docs_examples.sh DOCS PREFIX: the examples of docs/plugins (```cpp pack blocks), each at most 40 lines, built as packs
# against the installed SDK with warnings on, and accepted by the program; with MORTISE_LONG also by `plugin check`.
set -euo pipefail
docs=$1 prefix=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "docs_examples.sh: $*" >&2; exit 1; }
{
  echo 'cmake_minimum_required(VERSION 3.25)'
  echo 'project(examples VERSION 1.0.0 LANGUAGES C CXX)'
  echo 'find_package(mortise-sdk REQUIRED)'
} >"$scratch/CMakeLists.txt"
kinds=$(cd "$docs" && grep -lE '^```cpp pack$' ./*.md | sed 's|^\./||; s|\.md$||')
[[ $(wc -l <<<"$kinds") -ge 7 ]] || fail "only these pages have an example: $kinds"
for kind in $kinds; do
  awk '/^```cpp pack$/ { on = 1; next } /^```/ { on = 0 } on' "$docs/$kind.md" >"$scratch/$kind.cpp"
  lines=$(wc -l <"$scratch/$kind.cpp")
  [[ $lines -gt 0 && $lines -le 40 ]] || fail "$kind.md: its example has $lines lines (1 to 40)"
  echo "mortise_add_pack(docs.${kind//_/-} SOURCES $kind.cpp)" >>"$scratch/CMakeLists.txt"
done
cmake -S "$scratch" -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" >"$scratch/log" 2>&1 || fail "$(tail -n 20 "$scratch/log")"
cmake --build "$scratch/build" >"$scratch/log" 2>&1 || fail "$(tail -n 40 "$scratch/log")"
for kind in $kinds; do
  names=$(awk '/^MORTISE_PACK\(/ { on = 1 } on' "$scratch/$kind.cpp" | grep -oE '\("[a-z0-9_]+"' | tr -d '("')
  [[ $kind == packs || $(wc -l <<<"$names") == 1 ]] || fail "$kind.md: its pack has other plugins too: $names"
  for name in $names; do
    "$prefix/bin/mortise" plugin describe "docs.${kind//_/-}/$name" --plugin-path "$scratch/build/lib/mortise/packs" \
      >"$scratch/log" 2>&1 || fail "$kind: $(cat "$scratch/log")"
    # What the page writes into a config is this plugin.
    grep -q "= \"$name\"" "$docs/$kind.md" || fail "$kind.md: its config does not name '$name'"
  done
  [[ -z ${MORTISE_LONG:-} ]] ||
    "$prefix/bin/mortise" plugin check "$scratch/build/lib/mortise/packs/docs.${kind//_/-}.so" >"$scratch/log" 2>&1 ||
    fail "$kind: $(cat "$scratch/log")"
done
listed=$("$prefix/bin/mortise" plugin list --plugin-path "$scratch/build/lib/mortise/packs")
for name in length_bonus one_word plain_gradient; do
  grep -q "\b$name\b" <<<"$listed" || fail "plugin list leaves out $name of the pack of several: $listed"
done
echo "docs: the examples of $(wc -l <<<"$kinds") pages build and load"
