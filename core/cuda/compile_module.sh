# compile_module.sh NVCC CORE MODULE REPORT: makes libmortise_cuda.so for sm_75, sm_80, sm_90, sm_100 and as PTX, warnings
# as errors. REPORT gets what ptxas says of registers and spills.
set -euo pipefail
"$1" -std=c++20 -O3 -Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror,-fPIC,-fvisibility=hidden -I"$2" -Xptxas -v \
  -gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
  -gencode 'arch=compute_100,code=[sm_100,compute_100]' \
  -shared "$2/cuda/module.cu" -o "$3" >"$4" 2>&1 || { cat "$4" >&2; exit 1; }
