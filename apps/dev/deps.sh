# ./dev deps: installs what ./dev build and ./dev test need, and nothing else.
source apps/dev/lib.sh
# --arrow: only Arrow's libraries, for Parquet and Arrow data files. Then build again.
# --cudnn: only cudnn-frontend's headers, for libmortise_cudnn.so. Then build again.
# --cuda: only libtorch's CUDA half, for runs on a GPU. The build does not change.
case ${1:-} in
  "") ;;
  --arrow)
    need_apt build
    need_arrow
    say "in place: $arrow_dir; build again to read Parquet and Arrow files"
    exit 0
    ;;
  --cuda)
    need_apt build
    need_torch
    need_cuda
    say "in place: $cuda_dir; runs with model.device = \"cuda\" find it there (docs/cuda.md)"
    exit 0
    ;;
  --cudnn)
    need_apt build
    need_cudnn
    say "in place: $cudnn_dir; build again where CUDA's headers and cudnn.h are to get libmortise_cudnn.so"
    exit 0
    ;;
  -h | --help) echo "usage: ./dev deps [--arrow | --cuda | --cudnn]"; exit 0 ;;
  *) die $exit_usage "deps takes no '$1'" ;;
esac
need_apt build test
need_torch
need_arrow
say "oracles for the tests: $(oracle_names)"
install_oracles || die $exit_download "the oracles could not be installed: $(tail -n 5 "$(log_file oracles)")"
say "all in place: $torch_dir, $arrow_dir, $oracles_dir"
