# ./dev build [--preset NAME] [TARGET...]: the program lands in build/release/bin, its packs in build/release/lib/mortise/packs.
source apps/dev/lib.sh
preset=release
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=${2:?"--preset needs a name"}; shift 2 ;;
    --preset=*) preset=${1#*=}; shift ;;
    -h | --help) echo "usage: ./dev build [--preset release|debug|asan|tsan] [TARGET...]"; exit 0 ;;
    -*) die $exit_usage "build takes no '$1'" ;;
    *) break ;;
  esac
done
grep -q "\"name\": \"$preset\"" CMakePresets.json || die $exit_usage "no preset '$preset' in CMakePresets.json"
if [[ $preset == asan ]]; then need_apt build test; else need_apt build; fi
case $preset in release | debug | asan) need_torch ;; esac  # asan: for the tests' objects, which the release build makes
build "$preset" "$@"
