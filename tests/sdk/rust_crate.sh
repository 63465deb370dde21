#!/bin/bash
# rust_crate.sh SDK: the crate's own tests (layouts against sdk/layout.txt, dual numbers), offline. Ends with 77 (skipped)
# without cargo.
set -euo pipefail
if ! cargo --version >/dev/null 2>&1; then  # rustup without a toolchain has the command and cannot run it
  echo "rust_crate.sh: skipped: there is no cargo, which ./dev does not install (Debian: apt-get install cargo)"
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r "$1/rust" "$1/layout.txt" "$scratch/"  # cargo writes a lock file next to the manifest
CARGO_TARGET_DIR=$scratch/target RUSTFLAGS="-D warnings" cargo test --offline --manifest-path "$scratch/rust/mortise/Cargo.toml"
