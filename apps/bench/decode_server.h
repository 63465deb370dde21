// bench_decode --serve: decodes on request, so that another engine can be timed in turns with it, both with their model
// loaded once. One JSON object a line on standard input, one answer a line:
//   {"do": "load", "folder": DIR}                                    -> {"kernels"}
//   {"do": "roofline"}                                               -> {"read_bytes_per_s", "flops_per_s"}
//   {"do": "run", "prompts": [[id ...] ...], "new_tokens", "dtype": "float32"|"bfloat16", "temperature", "step"}
//      -> {"seconds", "step_seconds": [of each token step; the first has the prompts], "ids": [[id ...] ...],
//          "step_bytes", "step_flops": least that one step has to read and to compute, at the mean context}
// Each prompt is a row of its own. End ids never come, so that every row has new_tokens.
#pragma once

namespace mortise {

// Returns the exit code.
int serve_decoding(int threads);

}  // namespace mortise
