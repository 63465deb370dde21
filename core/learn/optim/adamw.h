// An optimizer with AdamW's rule.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "learn/optim/optimizer.h"
#include "learn/optim/rules.h"

namespace mortise {

class AdamW : public Optimizer {
 public:
  AdamW(std::vector<OptimizedParameter> parameters, const AdamWOptions& options, std::string state_name = "actor.optim",
        const ZeroOptions& zero = {})
      : Optimizer(std::move(parameters), make_adamw(options), options.weight_decay, std::move(state_name), zero) {}
};

}  // namespace mortise
