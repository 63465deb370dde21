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
exec $launcher "$compiler" "$@"
