#!/bin/sh
# other_compiler.sh COMPILER [LAUNCHER...] -- ITS_OWN ARGUMENT...: a compiler launcher that runs COMPILER instead of the build's own.
# clang reads X.gch for every `-include X`, also when it makes X.gch again. So the old one goes first.
compiler=$1
shift
launcher=
while [ "$1" != -- ]; do
  launcher="$launcher $1"
  shift
done
shift 2
for argument; do
  case $argument in *.gch) rm -f "$argument" ;; esac
done
command -v "$compiler" >/dev/null || {
  echo "There is no $compiler, which compiles the tests. Install clang-14, or configure with -DMORTISE_TEST_COMPILER=OFF." >&2
  exit 1
}
exec $launcher "$compiler" "$@"
