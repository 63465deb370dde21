# Shared by the lints: each is `NAME.sh ROOT`, prints one line per fault ("file:line: what") and ends with 1 where there is one.
set -euo pipefail
cd "$1"
num_faults=0
fault() {
  echo "$*"
  num_faults=$((num_faults + 1))
}
finish() {
  if [[ $num_faults -gt 0 ]]; then
    echo "$(basename "$0" .sh): $num_faults faults"
    exit 1
  fi
  exit 0
}
# sources: C, C++ and CUDA files of the tree, one a line.
sources() {
  local folder folders=()
  for folder in sdk core plugins apps tests cmake; do
    if [[ -d $folder ]]; then folders+=("$folder"); fi
  done
  find "${folders[@]}" -type f \( -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | sort
}
# texts: every file a person reads, without what builds and runs leave behind (.gitignore).
texts() { find . \( -path ./.git -o -path ./build -o -path ./.cache -o -path ./.venv -o -path ./runs \) -prune -o -type f -print | sed 's|^\./||' | sort; }
