# ./dev docs [--check]: writes docs/algorithms.md from the built plugins' descriptions of themselves, and the site of all pages
# with generated references into build/site/html. --check only compares docs/algorithms.md.
source apps/dev/lib.sh
check=
case ${1:-} in
  "") ;;
  --check) check=yes ;;
  -h | --help) echo "usage: ./dev docs [--check]"; exit 0 ;;
  *) die $exit_usage "docs takes no '$1'" ;;
esac
groups=(build)
[[ -n $check ]] || groups+=(docs)
need_apt "${groups[@]}"
need_torch
log=$(log_file docs-build)
say "building"
build release mortise packs >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 1; }
if [[ -n $check ]]; then
  "$system_python" apps/dev/algorithms_page.py build/release/bin/mortise --check docs/algorithms.md
else
  "$system_python" apps/dev/algorithms_page.py build/release/bin/mortise >docs/algorithms.md.new
  mv docs/algorithms.md.new docs/algorithms.md
  say "docs/algorithms.md is written"
  "$system_python" apps/dev/site.py build/release/bin/mortise build/site
fi
