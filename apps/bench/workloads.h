// The benchmark shapes of peers/workloads.json, for the benchmarks that need no Python.
#pragma once

#include <cstdint>

#include "model/weights/model_config.h"

namespace mortise {

struct Workload {
  const char* name;
  Qwen2Shape shape;
  int64_t prompts, generations, prompt_length, completion_length;
};

inline const Workload kWorkloads[] = {
    {"c1", {.vocab_size = 512, .initializer_range = 0.05}, 8, 8, 16, 64},
    {"c1v", {.vocab_size = 32768, .initializer_range = 0.05}, 8, 8, 16, 64},
    {"c2",
     {.vocab_size = 4096,
      .hidden_size = 384,
      .intermediate_size = 1024,
      .num_layers = 6,
      .num_heads = 6,
      .num_kv_heads = 2,
      .initializer_range = 0.05},
     4,
     8,
     64,
     128},
};

}  // namespace mortise
