# ./dev format [--check] [FILE...]: runs clang-format 14 on the C and C++ sources: the named files, or all tracked and new
# ones.
source apps/dev/lib.sh
check=
while [[ $# -gt 0 && $1 == -* ]]; do
  case $1 in
    --check) check=1; shift ;;
    -h | --help) echo "usage: ./dev format [--check] [FILE...]"; exit 0 ;;
    *) die $exit_usage "format takes no '$1'" ;;
  esac
done
need_apt build test
if [[ $# -gt 0 ]]; then
  files=("$@")
else
  mapfile -t files < <(find sdk core plugins apps tests cmake -type f \( -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' \))
fi
if [[ -n $check ]]; then
  clang-format-14 --dry-run --Werror "${files[@]}"
else
  clang-format-14 -i "${files[@]}"
fi
say "${#files[@]} files$([[ -n $check ]] && echo " are formatted")"
