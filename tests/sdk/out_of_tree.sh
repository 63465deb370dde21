#!/bin/bash
# out_of_tree.sh SOURCE_DIR BUILD_DIR: installs only the SDK into a scratch folder and builds a pack with
# find_package(mortise-sdk), as an author does. Then checks exports, needs and the pkg-config file.
set -euo pipefail
source_dir=$1 build_dir=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "out_of_tree: $*" >&2; exit 1; }
cmake --install "$build_dir" --prefix "$scratch/prefix" --component sdk >"$scratch/install.log" || fail "install: $(cat "$scratch/install.log")"
mkdir "$scratch/match"
cat >"$scratch/match/match.cpp" <<'CPP'
#include <mortise/cpp/mortise.hpp>
struct ExactMatch : mortise::Reward {
  double hit = param("hit", 1.0, "score for a match");
  double score(const mortise::Row& row) {
    auto want = row.text("answer");
    if (!want) return mortise::not_applicable;
    return row.completion() == *want ? hit : 0;
  }
};
MORTISE_PACK(MORTISE_REWARD("exact_match", ExactMatch))
CPP
cat >"$scratch/match/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(match VERSION 1.0.0 LANGUAGES C CXX)
find_package(mortise-sdk REQUIRED)
mortise_add_pack(acme.match SOURCES match.cpp)
CMAKE
cmake -S "$scratch/match" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$scratch/prefix" >"$scratch/log" 2>&1 || fail "configure: $(tail -n 20 "$scratch/log")"
cmake --build "$scratch/build" >"$scratch/log" 2>&1 || fail "build: $(tail -n 40 "$scratch/log")"
pack="$scratch/build/lib/mortise/packs/acme.match.so"
[[ -f $pack ]] || fail "no pack at $pack"
exports=$(nm -D --defined-only "$pack" | awk '{print $3}')
[[ $exports == mortise_pack_v1 ]] || fail "exports are: $exports"
dynamic=$(readelf -d "$pack")
grep -q NODELETE <<<"$dynamic" || fail "not linked with -z nodelete"
grep -qE 'R(UN)?PATH' <<<"$dynamic" && fail "has a run path"
readelf -n "$pack" | grep Mortise >/dev/null || fail "has no note"
export PKG_CONFIG_PATH=$(dirname "$(find "$scratch/prefix" -name mortise-sdk.pc)")
[[ -f $(pkg-config --variable=includedir mortise-sdk)/mortise/mortise.h ]] || fail "pkg-config gives no include path"
[[ -x $(pkg-config --variable=note mortise-sdk) ]] || fail "pkg-config gives no note maker"
# A pack without MORTISE_PACK must fail to build, with a reason.
echo '#include <mortise/cpp/mortise.hpp>' >"$scratch/match/match.cpp"
if cmake --build "$scratch/build" >"$scratch/log" 2>&1; then fail "a pack without an exported object was built"; fi
grep -q "does not export mortise_pack_v1" "$scratch/log" || fail "the reason is missing: $(tail -n 5 "$scratch/log")"
echo "out of tree: built and checked acme.match"
