# What the scripts of ./dev share: paths, messages, exit codes, and the installation of what is missing. Scripts source this
# file. It needs only bash and apt, as on a fresh Debian 12 machine, and runs in the source root.
set -euo pipefail

readonly exit_usage=2 exit_need_root=10 exit_download=11 exit_platform=12 exit_no_device=13  # docs/exit_codes.md
export MORTISE_CACHE=${MORTISE_CACHE:-$HOME/.cache/mortise}
export MORTISE_DEPS_DIR=${MORTISE_DEPS_DIR:-$MORTISE_CACHE/deps}
readonly torch_dir=$MORTISE_DEPS_DIR/torch-2.11.0
readonly cuda_dir=$MORTISE_DEPS_DIR/torch-cuda-2.11.0
readonly arrow_dir=$MORTISE_DEPS_DIR/pyarrow-26.0.1
readonly cudnn_dir=$MORTISE_DEPS_DIR/cudnn-frontend-1.32.0
readonly oracles_dir=$MORTISE_CACHE/oracles
# Debian's own Python: another one in PATH may have another version.
readonly system_python=/usr/bin/python3
# With this a second clone finds what the first one compiled, wherever the two are (test.sh has the one exception).
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
num_jobs=${MORTISE_JOBS:-$(nproc)}
readonly num_jobs

say() { printf '== %s\n' "$*"; }
die() {  # die CODE MESSAGE...
  local code=$1
  shift
  printf './dev: %s\n' "$*" >&2
  exit "$code"
}

# need_apt GROUP...: installs the missing packages of these groups of apt_packages.txt.
need_apt() {
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    die $exit_platform "this is not a Debian system; install the packages named in apps/dev/apt_packages.txt and use cmake --preset release"
  local group name wanted=() missing=()
  while read -r group name; do
    [[ " $* " == *" $group "* ]] && wanted+=("$name")
  done < <(grep -v '^#' apps/dev/apt_packages.txt)
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)
  for name in "${wanted[@]}"; do
    grep -qxF "installed $name" <<<"$installed" || missing+=("$name")
  done
  [[ ${#missing[@]} -eq 0 ]] && return
  local line="apt-get install -y --no-install-recommends ${missing[*]}"
  [[ $(id -u) -eq 0 ]] || die $exit_need_root "packages are missing and only root can install them. Run, then try again:
  sudo $line"
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  # A fresh machine may lack package lists or have old ones. Refresh them only if the first try fails.
  export DEBIAN_FRONTEND=noninteractive
  if ! $line >"$(log_file apt)" 2>&1 </dev/null; then
    apt-get update >"$(log_file apt)" 2>&1 </dev/null ||
      die $exit_download "apt-get update failed: $(tail -n 3 "$(log_file apt)")"
    $line >"$(log_file apt)" 2>&1 </dev/null || die $exit_download "'$line' failed: $(tail -n 5 "$(log_file apt)")"
  fi
}

log_file() {
  mkdir -p build/logs
  echo "$PWD/build/logs/$1.log"
}

# stamp_of FILE...: the text that .stamp of a finished, current folder has.
stamp_of() { cat "$@" | sha256sum | cut -d' ' -f1; }
is_current() { [[ -f $1/.stamp && $(<"$1/.stamp") == "$2" ]]; }  # is_current DIR STAMP

# put_in_place NEW DIR: renames NEW to DIR. At any moment DIR is complete, old or new.
put_in_place() {
  local old
  old=$(mktemp -d "$2.old.XXXXXX")
  [[ -e $2 ]] && mv -T "$2" "$old"
  mv -T "$1" "$2"
  rm -rf "$old"
}

# fetch_libraries DIR LIST NAME SIZE KEEP PLATFORM...: installs the wheels that LIST pins by hash into DIR, unless it has
# them. `KEEP FROM TO` moves the parts that are used. Processes that start at once wait for one another.
fetch_libraries() {
  local dir=$1 list=$2 name=$3 size=$4 keep=$5 stamp new log one platforms=()
  shift 5
  stamp=$(stamp_of "$list")
  is_current "$dir" "$stamp" && return
  [[ $(uname -m) == x86_64 ]] || die $exit_platform "$name is pinned for x86_64 only, and this machine is $(uname -m)"
  for one; do platforms+=(--platform "$one"); done
  log=$(log_file "$(basename "$list" _requirements.txt)")
  mkdir -p "$MORTISE_DEPS_DIR"
  exec {lock}>"$MORTISE_DEPS_DIR/.lock"
  flock "$lock"
  if ! is_current "$dir" "$stamp"; then
    rm -rf "$dir".new.*  # a killed run left it
    new=$(mktemp -d "$dir.new.XXXXXX")
    say "fetching $name $size into $dir"
    # TMPDIR: pip unpacks there first, and /tmp may be small.
    TMPDIR=$new "$system_python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --no-cache-dir \
      --require-hashes --requirement "$list" --target "$new/all" --only-binary=:all: --python-version 3.11 \
      --implementation cp "${platforms[@]}" >"$log" 2>&1 </dev/null ||
      die $exit_download "$name could not be fetched: $(tail -n 5 "$log")"
    "$keep" "$new/all" "$new/kept"
    echo "$stamp" >"$new/kept/.stamp"
    put_in_place "$new/kept" "$dir"
    rm -rf "$new"
  fi
  exec {lock}>&-
}

# need_torch: installs libtorch into $torch_dir, without the parts that a CPU build does not use.
need_torch() {
  fetch_libraries "$torch_dir" apps/dev/torch_requirements.txt libtorch "2.11.0 (550 MB, once)" keep_cpu_part \
    manylinux_2_28_x86_64 manylinux_2_25_x86_64 manylinux2014_x86_64
}
keep_cpu_part() {  # headers, the CPU libraries, and the licences
  mkdir -p "$2/torch/lib" "$2/nvidia/cu13/lib"
  mv "$1"/torch/lib/{libc10.so,libtorch_cpu.so,libgomp*} "$2/torch/lib/"
  mv "$1"/torch/{include,version.py} "$2/torch/"
  mv "$1"/nvidia/cu13/lib/{libcudart.so.13,libcupti.so.13} "$2/nvidia/cu13/lib/"
  mv "$1"/*.dist-info "$2/"
  check_libraries libtorch "$2/torch/lib/libtorch_cpu.so"
}
check_libraries() {  # NAME FILE...: that they find all libraries that they need
  local missing
  missing=$(ldd "${@:2}" | grep 'not found' || true)
  [[ -z $missing ]] || die $exit_platform "$1 needs libraries that are not here: $missing"
}

# need_cuda: installs libtorch's CUDA half and NVIDIA's libraries into $cuda_dir, where the program looks for them. Only
# runs with model.device = "cuda" load them. Three pins are those of torch_requirements.txt: both halves come from one
# wheel, and a library looks for NVIDIA's next to itself.
need_cuda() {
  fetch_libraries "$cuda_dir" apps/dev/cuda_requirements.txt "libtorch's CUDA half" "(2.3 GB, once; 4 GB on the disk)" \
    keep_cuda_part manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_25_x86_64 manylinux_2_18_x86_64 manylinux2014_x86_64
}
keep_cuda_part() {
  mkdir -p "$2/torch/lib"
  mv "$1"/torch/lib/{libtorch_cuda.so,libtorch_cuda_linalg.so,libtorch_nvshmem.so,libc10_cuda.so} "$2/torch/lib/"
  mv "$1"/nvidia "$1"/*.dist-info "$2/"
  LD_LIBRARY_PATH=$torch_dir/torch/lib check_libraries "libtorch's CUDA half" "$2"/torch/lib/*.so
  find "$2/nvidia" -name include -type d -prune -exec rm -rf {} +
}

# need_arrow: installs Arrow's C++ headers and libraries into $arrow_dir. Only those who read Parquet or Arrow files need
# them.
need_arrow() {
  fetch_libraries "$arrow_dir" apps/dev/arrow_requirements.txt Arrow "26.0.1 (50 MB, once)" keep_arrow_part manylinux_2_28_x86_64
}
keep_arrow_part() {
  mkdir -p "$2/lib"
  mv "$1"/pyarrow/{libarrow,libparquet}.so.2600 "$2/lib/"
  mv "$1"/pyarrow/include "$1"/*.dist-info "$2/"
  rm -rf "$2/include/arrow/python"
}

# need_cudnn: installs the headers of cudnn-frontend into $cudnn_dir. Only libmortise_cudnn.so needs them, which the build
# makes if nvcc and cuDNN's headers are there.
need_cudnn() {
  fetch_libraries "$cudnn_dir" apps/dev/cudnn_requirements.txt cudnn-frontend "1.32.0 (12 MB, once)" keep_cudnn_part \
    manylinux_2_28_x86_64
}
keep_cudnn_part() {
  mkdir -p "$2"
  mv "$1"/include "$1"/*.dist-info "$2/"
}

# have_wheels NAME, install_wheels NAME: a virtual environment with the wheels of tests/NAME.lock. Only tests and benchmarks
# use these; nothing that we build does.
#   oracles   what tests compare with
#   vllm      a real vLLM for the CPU
wheels_stamp() { stamp_of "tests/$1.lock"; }
have_wheels() { is_current "$MORTISE_CACHE/$1" "$(wheels_stamp "$1")" && [[ -x $MORTISE_CACHE/$1/bin/python ]]; }
fill_wheels() {
  "$MORTISE_CACHE/$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --no-cache-dir --only-binary=:all: \
    --require-hashes --requirement "tests/$1.lock"
}
# Importing these libraries takes 3 to 12 seconds if Python must compile them, and containers often set
# PYTHONDONTWRITEBYTECODE. Python runs this line when it starts in the environment: it compiles each module once, into a
# folder of the environment. An environment of an older ./dev gets the line too.
keep_bytecode() {
  local packages line="import sys; sys.dont_write_bytecode = False; sys.pycache_prefix = '$1/bytecode'"
  packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return 1
  [[ ! -f $packages/mortise_bytecode.pth || $(<"$packages/mortise_bytecode.pth") != "$line" ]] || return 0
  echo "$line" >"$packages/mortise_bytecode.pth"
}
install_wheels() {
  local dir=$MORTISE_CACHE/$1
  have_wheels "$1" && return
  mkdir -p "$MORTISE_CACHE"
  (
    flock 9
    have_wheels "$1" && exit 0
    # The scripts of a venv contain its path, so make it in place, and write the stamp last. Update an existing venv; if
    # that fails, make a new one.
    rm -f "$dir/.stamp"
    if [[ ! -x $dir/bin/python ]] || ! fill_wheels "$1"; then
      rm -rf "$dir"
      "$system_python" -m venv "$dir" && fill_wheels "$1" || exit 1  # -e has no effect in commands before ||
    fi
    keep_bytecode "$dir" || exit 1
    wheels_stamp "$1" >"$dir/.stamp"
  ) 9>"$MORTISE_CACHE/.$1.lock" >"$(log_file "$1")" 2>&1 </dev/null
}
oracle_names() { grep -v '^#' tests/oracles_requirements.txt | tr '\n' ' '; }
have_oracles() { have_wheels oracles; }
use_oracles() {  # tells the tests where they are
  have_oracles || return 0
  keep_bytecode "$oracles_dir" || true
  export MORTISE_ORACLES_PYTHON=$oracles_dir/bin/python
}
install_oracles() { install_wheels oracles; }

# configure PRESET: runs cmake once, and again after the preset's file changed or a tool was installed that makes builds faster.
# Once in a script. The preset asan takes the objects of its tests from the release build, so that one is made current first.
declare -A configured=()
configure() {
  local dir=build/$1 stamp
  [[ -z ${configured[$1]:-} ]] || return 0
  if [[ $1 == asan ]]; then configure release && ninja -C build/release build.ninja >/dev/null || return 1; fi
  stamp=$(stamp_of CMakePresets.json <(echo "$MORTISE_DEPS_DIR" && find "$arrow_dir" "$cudnn_dir" -maxdepth 0 2>/dev/null || true
    command -v clang++-14 ld.lld ccache || true))
  if [[ ! -f $dir/build.ninja ]] || ! is_current "$dir" "$stamp"; then
    cmake --preset "$1" -DMORTISE_DEPS_DIR="$MORTISE_DEPS_DIR" >"$(log_file "cmake-$1")" 2>&1 || {
      tail -n 40 "$(log_file "cmake-$1")" >&2
      return 1
    }
    echo "$stamp" >"$dir/.stamp"
  fi
  configured[$1]=1
}

# The target of libmortise_cuda.so; nothing without nvcc.
cuda_module_target() { ! command -v nvcc >/dev/null || echo mortise_cuda_module; }

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  configure "$preset" && ninja -C "build/$preset" -j "$num_jobs" "$@"
}
