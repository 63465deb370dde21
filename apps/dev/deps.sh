# ./dev deps: installs what ./dev build and ./dev test need, and nothing else.
source apps/dev/lib.sh
case ${1:-} in
  "") ;;
  -h | --help) echo "usage: ./dev deps"; exit 0 ;;
  *) die $exit_usage "deps takes no '$1'" ;;
esac
need_apt build test
need_torch
say "oracles for the tests: $(oracle_names)"
install_oracles || die $exit_download "the oracles could not be installed: $(tail -n 5 "$(log_file oracles)")"
say "all in place: $torch_dir, $oracles_dir"
