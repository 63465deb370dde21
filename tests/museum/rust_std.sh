#!/bin/bash
# rust_std.sh WORK: makes a small standard library for the museum's piece in Rust, and WORK/cargo, which builds with it.
#
# The library that comes with a compiler prints a backtrace when something panics, and the code that does so is 200 KB of
# every pack. Only a library that is built without it makes a small piece. This builds the one of Debian 12 (rustc 1.63)
# from Debian's own packages, without installing them: no backtrace, a panic ends the process, optimised for size.
set -euo pipefail
work=$(mkdir -p "$1" && cd "$1" && pwd)
host=x86_64-unknown-linux-gnu
cd "$work"

# unpack FOLDER PACKAGE ...
unpack() {
  local folder=$work/$1
  shift
  mkdir -p "$folder/packages"
  (cd "$folder/packages" && apt-get download -q "$@" >/dev/null 2>&1)
  for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$folder"; done
}
unpack rust rustc cargo rust-src libstd-rust-1.63 libstd-rust-dev libgit2-1.5 libhttp-parser2.9 libmbedcrypto7 libmbedtls14 libmbedx509-1
unpack crates librust-libc-dev librust-hashbrown-dev librust-cfg-if-0.1-dev librust-rustc-demangle-dev librust-compiler-builtins-dev librust-cc-dev
crates=$work/crates/usr/share/cargo/registry
source=$work/rust/usr/src/rustc-1.63.0

# Debian's crates, as the standard library uses them: with the dependencies that Debian's other packages do not need.
python3 - "$crates" "$source" <<'PYTHON'
import pathlib, re, sys

crates, source = map(pathlib.Path, sys.argv[1:])
table = r"\[%s[^\n]*\]+\n(?:[^\[\n][^\n]*\n)*"


def edit(path, *changes):
    text = path.read_text()
    for pattern, new in changes:
        text = re.sub(pattern, new, text, flags=re.M)
    path.write_text(text)


extra = "[dependencies.alloc]\nversion = '1.0.0'\noptional = true\npackage = 'rustc-std-workspace-alloc'\n\n[features]"
edit(next(crates.glob("hashbrown-*")) / "Cargo.toml", (table % "dev-dep", ""), (r"^ahash-compile.*\n", ""), (r'^ +"ahash",\n', ""),
     (table % r"dependencies\.(?:ahash|bumpalo|rayon|serde)", ""), (r'^    "core",$', '    "core",\n    "alloc",'), (r"^\[features\]$", extra))
edit(next(crates.glob("cfg-if-*")) / "Cargo.toml", (r"^#(.*compiler_builtins.*|version.*|optional.*)$", r"\1"))
for crate in crates.iterdir():
    (crate / ".cargo-checksum.json").write_text('{"package": null, "files": {}}')
for name in "std", "core", "alloc", "unwind":
    edit(source / "library" / name / "Cargo.toml", (table % "dev-dep", ""), (table % r"\[(?:bench|test)\]", ""), (table % r"target\.", ""),
         (table % r"dependencies\.object", ""), (r"^(addr2line|miniz_oxide) = .*\n", ""), (r"^backtrace = \[\n(?: .*\n)*\]\n", ""),
         (r'^(compiler_builtins.*)"0\.1\.73"', r'\1"0.1.70"'))
(source / "Cargo.toml").write_text("""[workspace]
members = ["library/std"]
exclude = ["library/stdarch"]
[patch.crates-io]
rustc-std-workspace-core = { path = "library/rustc-std-workspace-core" }
rustc-std-workspace-alloc = { path = "library/rustc-std-workspace-alloc" }
[profile.release]
panic = "abort"
opt-level = "z"
codegen-units = 1
""")
(source / ".cargo").mkdir(exist_ok=True)
(source / ".cargo/config.toml").write_text(
    f'[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "{crates}"\n')
PYTHON

library=$work/sysroot/lib/rustlib/$host/lib
mkdir -p "$library"
common="-C panic=abort -C force-unwind-tables=no --sysroot $work/sysroot"
cat >cargo <<WRAPPER
#!/bin/bash
# cargo of Debian 12 with the small standard library
export LD_LIBRARY_PATH=$work/rust/usr/lib/x86_64-linux-gnu RUSTC=$work/rust/usr/bin/rustc RUSTFLAGS="$common \${EXTRA_RUSTFLAGS:-}"
exec $work/rust/usr/bin/cargo "\$@" --offline --target $host
WRAPPER
chmod +x cargo
(cd "$source" && RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$work/target EXTRA_RUSTFLAGS="-C embed-bitcode=yes -Z force-unstable-if-unmarked" \
  "$work/cargo" build --release -p std --features panic_immediate_abort)
cp "$work/target/$host"/release/deps/*.rlib "$library/"
