# compile_cuda.sh NVCC ROOT SOURCE OBJECT REPORT: the CUDA builds of a pack, for sm_75, sm_80, sm_90, sm_100 and as PTX,
# warnings as errors. All are made of one PTX, in half the time of a PTX for each.
# OBJECT.d names the files that it read, REPORT gets what ptxas says of registers and spills.
set -euo pipefail
"$1" -std=c++17 -O3 --expt-relaxed-constexpr -Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror,-fPIC,-fvisibility=hidden \
  -I"$2/sdk/include" -I"$2" -Xptxas -v -MD -MF "$4.d" \
  -gencode 'arch=compute_75,code=[sm_75,sm_80,sm_90,sm_100,compute_75]' \
  -c "$3" -o "$4" >"$5" 2>&1 || { cat "$5" >&2; exit 1; }
