// A small problem for every update rule: parameters of each kind, and the rules under the names that
// optimizers_oracle.py gives them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "learn/optim/optimizer.h"
#include "learn/optim/rules.h"

namespace mortise::test {

struct RuleCase {
  std::string name;
  double lr = 0.0, weight_decay = 0.0;
  std::function<std::unique_ptr<const UpdateRule>()> rule;
  bool decays_all = true;   // norms and biases too
  double tolerance = 2e-5;  // share of the distance that the parameters move
};

// Printed by gtest where a case fails.
inline void PrintTo(const RuleCase& one, std::ostream* out) { *out << one.name; }

inline std::vector<RuleCase> rule_cases() {
  const AdamWOptions adamw{0.9, 0.99, 1e-6, 0.1};
  AdafactorOptions scaled{.clip_threshold = 0.5, .scale_parameter = true};
  AdafactorOptions relative{.scale_parameter = true, .relative_step = true, .warmup_init = true};
  AdafactorOptions moment{.decay_rate = -0.6, .beta1 = 0.9};
  MuonOptions muon_plain{adamw, 0.8, false, 3, true};
  // Rounding to bfloat16 or to 8 bits turns a last bit into a large one, rarely.
  return {
      {"adamw", 1e-2, 0.1, [=] { return make_adamw(adamw); }, false},
      {"sgd", 0.5, 0.0, [] { return make_sgd({}); }},
      {"sgd_momentum", 0.5, 0.05, [] { return make_sgd({.momentum = 0.9}); }},
      {"sgd_nesterov", 0.5, 0.0, [] { return make_sgd({.momentum = 0.8, .nesterov = true}); }},
      {"sgd_dampening", 0.5, 0.05, [] { return make_sgd({.momentum = 0.9, .dampening = 0.3}); }},
      {"lion", 1e-3, 0.1, [] { return make_lion({}); }},
      {"lion_bitsandbytes", 1e-3, 0.1, [] { return make_lion({}); }},
      {"adafactor", 1e-2, 0.0, [] { return make_adafactor({}); }},
      {"adafactor_scaled", 1e-1, 0.0, [=] { return make_adafactor(scaled); }},
      {"adafactor_relative", 1e-2, 0.0, [=] { return make_adafactor(relative); }},
      {"adafactor_moment", 1e-2, 0.1, [=] { return make_adafactor(moment); }},
      {"muon", 1e-2, 0.1, [=] { return make_muon({.adamw = adamw}); }, true, 1e-4},
      {"muon_plain", 1e-2, 0.0, [=] { return make_muon(muon_plain); }, true, 1e-4},
      {"adamw_8bit", 1e-2, 0.1, [=] { return make_adamw_8bit({.adamw = adamw}); }, true, 1e-3},
      {"adamw_8bit_all", 1e-2, 0.1,
       [=] {
         return make_adamw_8bit({adamw, 4096, true});
       },
       true, 1e-3},
      {"adamw_8bit_table", 1e-2, 0.1,
       [=] {
         return make_adamw_8bit({adamw, 4096, true});
       },
       true, 1e-2},
  };
}

inline ParameterRole role_named(const std::string& name) {
  return name == "embedding" ? ParameterRole::kEmbedding : ParameterRole::kHidden;
}

inline bool decays(const RuleCase& one, const std::string& name) {
  return one.decays_all || (name != "norm" && name != "bias");
}

}  // namespace mortise::test
