#!/bin/bash
# make.sh BUILD: makes the pieces of ABI 1.0 with each compiler, in pieces/v1 with their manifest.json. BUILD has
# bin/mortise_note. The pieces of pieces/v0 were made before the freeze, from the headers of that time, and stay.
#
# It needs the compilers named below under these names (Debian 12: apt-get install gcc-11 g++-11 gcc-12 g++-12 clang-13
# clang-14 clang-15 clang-16; bookworm has no gcc-10). rust_std.sh fetches Rust. CI needs neither: it only loads the pieces.
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
sdk=$here/../../sdk
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pieces=$here/pieces/v1
mkdir -p "$pieces"
rm -f "$pieces"/*.so
entries=()
all="policy_loss kl_estimator advantage_estimator reward rollout_backend environment"

# finish NAME LANGUAGE COMPILER GROWTH KINDS FLAGS: hashes the piece and notes how it was made.
finish() {
  local file=$pieces/$1.so
  entries+=("{\"file\":\"$1.so\",\"sha256\":\"$(sha256sum "$file" | cut -d' ' -f1)\",\"language\":\"$2\",\"compiler\":\"$3\",\"growth\":\"$4\",\"kinds\":\"$5\",\"flags\":\"$6\"}")
}

kinds_of() {
  case $1 in
    *LOSS*KL*) echo "policy_loss kl_estimator" ;;
    *LOSS*) echo policy_loss ;;
    *KL*) echo kl_estimator ;;
    *EXTENSIONS*) echo environment ;;
    *ROWS*) echo "advantage_estimator reward rollout_backend environment" ;;
    *) echo "$all" ;;
  esac
}

# piece NAME LANGUAGE GROWTH SOURCE COMPILER FLAG ...: links twice, as mortise_add_pack() does; the note is made in between.
piece() {
  local name=$1 language=$2 growth=$3 source=$4 cc=$5
  shift 5
  local link=(-shared "-Wl,--version-script=$sdk/cmake/pack.map" -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro
    -Wl,-z,noexecstack -Wl,-z,noseparate-code -Wl,--as-needed -Wl,--gc-sections -s)
  "$cc" "$@" -ffp-contract=off -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections -I "$sdk/include" \
    -DMORTISE_PACK_ID='"museum.piece"' -DMORTISE_PACK_VERSION='"1.0.0"' -c "$source" -o "$work/piece.o"
  "$cc" "$work/piece.o" "${link[@]}" -o "$work/fresh.so"
  "$build/bin/mortise_note" "$work/fresh.so" compiler="$cc" >"$work/note.c"
  "$cc" -x c -fPIC -c "$work/note.c" -o "$work/note.o"
  "$cc" "$work/piece.o" "$work/note.o" "${link[@]}" -o "$pieces/$name.so"
  mapfile -t version < <("$cc" --version)
  finish "$name" "$language" "${version[0]}" "$growth" "$(kinds_of "$*")" "$*"
}

for cc in gcc-11 gcc-12 clang-13 clang-14 clang-15 clang-16; do
  for level in -O0 -O3; do
    piece "c11-$cc$level" C11 none "$here/source/museum.c" "$cc" -std=c11 $level
  done
done
for cc in gcc-11 clang-16; do
  piece "c11-$cc-O3-newer" C11 newer "$here/source/museum.c" "$cc" -std=c11 -O3 -DNEWER
done
# What is around the kinds. Those of pieces/v0 have -DDRAFT and the headers of 0.2.
for flags in "gcc-11 -O3" "clang-16 -O0"; do
  read -r cc level <<<"$flags"
  piece "c11-$cc$level-extensions" C11 none "$here/source/extensions.c" "$cc" -std=c11 "$level" -DEXTENSIONS
done
# Without optimisation the C++ layer is large: each piece has one kind, and no frame pointers.
for cc in g++-11 clang++-16; do
  for kind in LOSS KL; do
    piece "cpp17-$cc-O0-${kind,,}" C++17 none "$here/source/museum.cpp" "$cc" -std=c++17 -O0 -fvisibility-inlines-hidden \
      -fomit-frame-pointer -fno-asynchronous-unwind-tables -D$kind
  done
done
for cc in g++-12 clang++-13 clang++-14 clang++-15; do
  piece "cpp20-$cc-O3-tokens" C++20 none "$here/source/museum.cpp" "$cc" -std=c++20 -O3 -DLOSS -DKL
  piece "cpp20-$cc-O3-rows" C++20 none "$here/source/museum.cpp" "$cc" -std=c++20 -O3 -DROWS
done

"$here/rust_std.sh" "$work/rust"
(cd "$here/source/rust" && CARGO_TARGET_DIR=$work/crate EXTRA_RUSTFLAGS="-C link-arg=-Wl,-z,noseparate-code" "$work/rust/cargo" build --release)
install -m 644 "$work/crate/x86_64-unknown-linux-gnu/release/libmuseum.so" "$pieces/rust-O3.so"
finish rust-O3 Rust "$(LD_LIBRARY_PATH=$work/rust/rust/usr/lib/x86_64-linux-gnu "$work/rust/rust/usr/bin/rustc" --version) (Debian)" none "$all" \
  "-C opt-level=3 -C lto -C strip=symbols -C panic=abort"
rm -f "$here/source/rust/Cargo.lock"

{
  echo '{"abi": "1.0", "pieces": ['
  printf '%s\n' "${entries[@]}" | sed '$!s/$/,/'
  echo ']}'
} >"$pieces/manifest.json"
ls -l "$pieces"
