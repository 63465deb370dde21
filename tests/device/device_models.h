// Small models of each family on the device under test or on the CPU, and what the engine samples from them.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "device/device_under_test.h"
#include "generate/engine.h"
#include "unit/model/gradient_fixture.h"

namespace mortise {

// Head size 16, grouped heads, and what else a family has.
inline ModelConfig device_config(Family family) {
  ModelConfig config = small_config(family, false);
  config.hidden_size = 64;
  config.head_dim = 16;
  config.intermediate_size = 96;
  if (config.moe.num_experts > 0) config.moe.expert_size = 48;
  if (!config.rope.short_factor.empty()) {  // one for each pair of rotated numbers
    config.rope.short_factor.assign(4, config.rope.short_factor.front());
    config.rope.long_factor.assign(4, config.rope.long_factor.front());
  }
  config.initializer_range = 0.1;
  return config;
}

inline Model model_of(Family family, const std::string& dtype, bool on_device) {
  Model model = *Model::random(device_config(family), 11, dtype);
  if (on_device) {
    const auto moved = model.move_to(device_under_test);
    EXPECT_TRUE(moved.ok()) << (moved.ok() ? "" : moved.error().to_string());
  }
  return model;
}

// Completions by request and sample.
using Completions = std::map<std::pair<int64_t, int64_t>, GeneratedSequence>;

inline Result<Completions> sample_all(GenerateEngine& engine, const std::vector<GenerateRequest>& requests) {
  Completions out;
  TRY(engine.submit(requests));
  const auto keep = [&](const GeneratedSequence& one) {
    out[{one.request_id, one.sample_index}] = one;
    return true;
  };
  TRY(engine.poll(keep, std::chrono::nanoseconds(-1)));
  return out;
}

}  // namespace mortise
