# budgets.sh REPORT ["ARCH ..." "KERNEL REGISTERS ..."]: no kernel of libmortise_cuda.so spills a register or uses more than
# its budget, on any architecture. REPORT is what ptxas said (core/cuda/compile_module.sh). A budget is what the kernel
# had when it was written, and a few more; libmortise_cuda.so may use 16 more on sm_75. The other two arguments are for a
# report of other kernels, each in many instances.
set -euo pipefail
awk -v other_archs="${2:-}" -v others="${3:-}" '
  function set_budgets() {
    count = split(others, part, " ")
    for (i = 1; i < count; i += 2) budget[part[i]] = part[i + 1]
    if (others != "") return
    budget["head_chunk_kernel"] = budget["head_finish_kernel"] = budget["head_backward_kernel"] = budget["adamw_kernel"] = 40
    budget["clip_kernel"] = budget["square_sum_kernel"] = 40
    budget["rms_norm_kernel"] = budget["head_norm_kernel"] = budget["rope_write_kernel"] = budget["attention_merge_kernel"] = 40
    budget["gated_kernel"] = 40
    budget["gated_backward_kernel"] = 48
    budget["column_sum_kernel"] = 40
    # Float or bfloat16 gradients, and the columns of a row that a thread has in registers.
    budget["rms_norm_backward_kernelIfLi4E"] = budget["rms_norm_backward_kernelItLi4E"] = 64
    budget["rms_norm_backward_kernelIfLi8E"] = budget["rms_norm_backward_kernelItLi8E"] = 80
    budget["rms_norm_backward_kernelIfLi16E"] = budget["rms_norm_backward_kernelItLi16E"] = 128
    budget["rms_norm_backward_kernelIfLi32E"] = budget["rms_norm_backward_kernelItLi32E"] = 176
    # The pairs that a lane adds up for the weight of a norm; what four, three or two blocks of a multiprocessor may have.
    budget["rotate_heads_kernel"] = 56
    budget["rotate_heads_backward_kernelIfLi0E"] = budget["rotate_heads_backward_kernelItLi0E"] = 64
    budget["rotate_heads_backward_kernelIfLi2E"] = budget["rotate_heads_backward_kernelItLi2E"] = 80
    budget["rotate_heads_backward_kernelIfLi4E"] = budget["rotate_heads_backward_kernelItLi4E"] = 128
    budget["biased_heads_backward_kernelIfLi2E"] = budget["biased_heads_backward_kernelItLi2E"] = 80
    budget["biased_heads_backward_kernelIfLi4E"] = budget["biased_heads_backward_kernelItLi4E"] = 128
    # What two blocks of a multiprocessor may have, but for the instances with room: float or bfloat16 numbers, 4 query heads.
    budget["attention_split_kernelIfLi4E"] = 108
    budget["attention_split_kernelItLi4E"] = 112
    budget["attention_split_kernelIfLi8E"] = budget["attention_split_kernelItLi8E"] = 128
    budget["attention_split_kernelIfLi16E"] = budget["attention_split_kernelItLi16E"] = 128
    budget["clamped_gate_kernel"] = 40
    budget["clamped_gate_backward_kernel"] = 48
    budget["route_kernel"] = budget["group_experts_kernel"] = budget["sum_experts_kernel"] = 40
    budget["expert_product_kernel"] = 64
    budget["expert_tensor_kernel"] = 80
    budget["sample_kernel"] = 64
    budget["edit_kernel"] = 52
    budget["top_kernel"] = 40
  }
  BEGIN { set_budgets() }
  /Compiling entry function/ {
    kernel = ""; arch = $NF
    for (name in budget) if (index($0, name)) kernel = name
    if (kernel == "") { print "a kernel without a budget: " $0; faults++ }
    seen[kernel, arch] = 1
  }
  /spill stores/ && !/ 0 bytes spill stores, 0 bytes spill loads/ { print kernel " for " arch " spills: " $0; faults++ }
  match($0, /Used [0-9]+ registers/) {
    used = substr($0, RSTART + 5, RLENGTH - 15) + 0
    most = budget[kernel] + (others == "" && arch ~ /75/ ? 16 : 0)
    if (used > most) { print kernel " for " arch " uses " used " registers, its budget is " most; faults++ }
    measured++
  }
  END {
    split(others != "" ? other_archs : "75 80 90 100", archs, " ")
    for (name in budget) for (i in archs) if (!((name, "\047sm_" archs[i] "\047") in seen)) { print name " was not compiled for sm_" archs[i]; faults++ }
    print measured " kernels measured"
    exit faults > 0 || measured == 0
  }' "$1"
