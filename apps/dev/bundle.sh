# ./dev bundle [OPTIONS]: builds Mortise, and makes a folder with everything that it needs but glibc, and an archive of the folder.
# On another machine it needs no compiler, no root and no network (docs/bundles.md).
#   --without-libtorch  leaves libtorch out, for machines that have PyTorch of the same version; use_libtorch there says where
#   --without-arrow     leaves Arrow out (64 MB): the programs then read no Parquet and no Arrow files
#   --tests             with the programs of ./dev test --device and ./dev bench device
#   --output DIR        where the folder and the archive go (default: build/bundle)
#   --no-archive        makes the folder alone
#   --no-build          takes build/release as it is
source apps/dev/lib.sh
source apps/dev/test_device.sh
libtorch=1 arrow=1 tests= archive=1 built= output=build/bundle
while [[ $# -gt 0 ]]; do
  case $1 in
    --without-libtorch) libtorch=; shift ;;
    --without-arrow) arrow=; shift ;;
    --tests) tests=1; shift ;;
    --no-archive) archive=; shift ;;
    --no-build) built=1; shift ;;
    --output) output=${2:?"--output needs a folder"}; shift 2 ;;
    -h | --help) sed -n '/^source/q; s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die $exit_usage "bundle takes no '$1'" ;;
  esac
done

# What every Linux machine has. All other libraries come along.
readonly glibc=' ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 libutil.so.1 '
readonly build_dir=build/release torch_version=${torch_dir##*-}

elf_files() {  # FOLDER: its programs and libraries
  local file
  find "$1" -type f | while read -r file; do
    if [[ $(head -c 4 "$file" | od -An -tx1) == ' 7f 45 4c 46' ]]; then echo "$file"; fi
  done
}
with_elf_files() { elf_files "$1" | xargs -r -d '\n' "${@:2}"; }  # FOLDER COMMAND...: the command, with the files behind it

# install_parts FOLDER: programs, packs and the SDK where `cmake --install` puts them, and with --tests those of tests.
install_parts() {
  local part program
  for part in programs packs sdk; do
    cmake --install "$build_dir" --prefix "$1" --component "$part" --strip >"$(log_file bundle)" 2>&1 ||
      die 1 "cmake --install failed: $(tail -n 5 "$(log_file bundle)")"
  done
  cp -r configs LICENSE "$1/"
  if [[ -z $arrow ]]; then rm -f "$1/lib/mortise/libmortise_arrow.so"; fi
  [[ -n $tests ]] || return 0
  mkdir -p "$1/tests"
  for program in $test_programs; do cp "$build_dir/tests/$program" "$1/tests/"; done
  cp "$build_dir"/bin/make_task "$build_dir"/bin/bench_{device,passes,decode} "$1/bin/"
  cp -r "$build_dir/lib/mortise/bench_packs" "$1/lib/mortise/"
  with_elf_files "$1/tests" strip "$1"/bin/{make_task,bench_*}
}

# copy_libraries FOLDER: what its files need and nobody else has. libtorch and NVIDIA's driver are not among them.
copy_libraries() {
  local folder=$1 name path torch own
  mkdir -p "$folder/lib/needed"
  torch=$(realpath "$torch_dir") own=$(realpath "$folder")
  with_elf_files "$folder" ldd 2>/dev/null | sed -nE 's/^\t([^ ]+) => (\/.+) \(0x[0-9a-f]+\)$/\1 \2/p' | sort -u | while read -r name path; do
    [[ $glibc != *" $name "* && $(realpath "$path") != "$torch"/* && $(realpath "$path") != "$own"/* ]] || continue
    cp -L "$path" "$folder/lib/needed/$name"
    copy_licence "$path" "$folder/licenses"
  done
}
copy_licence() {  # LIBRARY FOLDER: that of its Debian package. dpkg names some libraries without /usr.
  local path package
  path=$(realpath "$1")
  package=$({ dpkg-query -S "$path" || dpkg-query -S "${path#/usr}" || true; } 2>/dev/null | sed -n '1s/:.*//p')
  mkdir -p "$2"
  if [[ -n $package ]]; then cp -L "/usr/share/doc/$package/copyright" "$2/$package"; fi
}

copy_libtorch() {  # FOLDER
  mkdir -p "$1/lib/python"
  cp -r "$torch_dir/nvidia" "$1/lib/python/"
  mkdir -p "$1/lib/python/torch"
  cp -r "$torch_dir/torch/lib" "$torch_dir/torch/version.py" "$1/lib/python/torch/"
  cp -r "$torch_dir"/*.dist-info "$1/licenses/"
}

# find_from_itself FOLDER: each file finds the libraries from where it is, wherever the folder lies. Packs may not have a way of
# their own. They use that of the program that loads them.
find_from_itself() {
  local file up way
  elf_files "$1" | while read -r file; do
    [[ $file != "$1"/lib/mortise/*packs/* && $file != "$1"/lib/python/* ]] || continue
    up=$(realpath --relative-to "$(dirname "$file")" "$1/lib")
    way=
    for place in mortise needed python/torch/lib python/nvidia/cu13/lib; do way+=:\$ORIGIN/$up/$place; done
    # DT_RPATH: what a library of the folder needs is found by the way of the program, too.
    patchelf --force-rpath --set-rpath "${way#:}" "$file"
  done
}

# not_found FOLDER: the libraries that neither the folder nor glibc has. Empty if the folder is complete.
not_found() {
  local name places=("$1")
  [[ -n $libtorch ]] || places+=("$torch_dir")
  with_elf_files "$1" objdump -p | sed -nE 's/^ *NEEDED +//p' | sort -u | while read -r name; do
    [[ $glibc != *" $name "* ]] || continue
    [[ -z $(find "${places[@]}" -name "$name" -print -quit) ]] || continue
    case $name in libtorch_cuda.so | libc10_cuda.so | libcudart.so.* | libcuda.so.1 | libnccl.so.* | libcudnn*.so.*) ;; *) echo "$name" ;; esac
  done
}

copy_texts() {  # FOLDER
  local file
  for file in README.md use_libtorch; do
    sed "s/@VERSION@/$torch_version/; s/@TORCH@/$torch_version/; s/@GLIBC@/$(newest_glibc "$1")/" "apps/dev/bundle/$file" >"$1/$file"
  done
  chmod +x "$1/use_libtorch"
}
newest_glibc() {  # FOLDER: the newest glibc that a file asks for
  with_elf_files "$1" objdump -T | sed -nE 's/.*[( ]GLIBC_([0-9]+\.[0-9]+)[.0-9]*[) ].*/\1/p' | sort -Vu | tail -n 1
}

make_folder() {  # FOLDER
  install_parts "$1"
  copy_libraries "$1"
  if [[ -n $libtorch ]]; then copy_libtorch "$1"; fi
  if [[ -n $arrow ]]; then cp -r "$arrow_dir"/*.dist-info "$1/licenses/"; fi
  cp -r third_party_notes "$1/licenses/"
  find_from_itself "$1"
  copy_texts "$1"
  local missing
  missing=$(not_found "$1")
  [[ -z $missing ]] || die 1 "the bundle lacks libraries that its files need:"$'\n'"$missing"
}

need_apt build bundle
need_torch
need_arrow
test_programs=$(for part in $device_parts; do device_programs "$part"; done | cut -d' ' -f1)
if [[ -z $built ]]; then
  say "building"
  configure release || die 1 "the build could not be configured"
  modules=$(ninja -C "$build_dir" -t targets all | sed -nE 's/^(mortise_(arrow|nccl|graphs|cudnn)): phony$/\1/p')
  build release mortise packs mortise_note ${modules} $(cuda_module_target) \
    ${tests:+make_task bench_device bench_passes bench_decode bench_packs $test_programs} >"$(log_file bundle)" 2>&1 ||
    { tail -n 40 "$(log_file bundle)" >&2; exit 1; }
fi
name=mortise-$("$build_dir/bin/mortise" --version | sed -E 's/.* ([0-9][^ ]*).*/\1/;q')-linux-x86_64
mkdir -p "$output"
new=$output/.$name.new
exec {lock}>"$output/.$name.lock"
flock -n "$lock" || die 1 "another ./dev bundle writes $output/$name; wait for it, or name another folder"
rm -rf "$new"  # a killed run left it
mkdir "$new"
trap 'rm -rf "$new"' EXIT
say "putting together $output/$name"
make_folder "$new"
chmod 755 "$new"
put_in_place "$new" "$output/$name"
if [[ -n $archive ]]; then
  say "packing $output/$name.tar.xz"
  tar -C "$output" -c "$name" | xz -T0 -9 >"$output/.$name.tar.xz.part"
  mv "$output/.$name.tar.xz.part" "$output/$name.tar.xz"
  du -h "$output/$name.tar.xz" | cut -f1
fi
