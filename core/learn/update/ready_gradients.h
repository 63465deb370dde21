// ReadyGradients: tells while a backward pass runs which gradients are complete, so that ranks can send them.
//
// Parameters are told in groups of neighbours in the list (buckets.h). Backward goes from the last layer to the first,
// and so do the groups. A group is told when autograd has stored the gradients of all its parameters, and every group
// before it is told. Groups with a parameter that the pass does not reach, and those after them, are told when the pass
// is over. All ranks therefore tell the same groups in the same order, whatever their passes compute.
//
// Private to this folder. Thread rule: one pass at a time. A group is told on the thread that runs autograd.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "foundation/base/result.h"
#include "learn/optim/buckets.h"

namespace mortise {

class ReadyGradients {
 public:
  using OnGroup = std::function<Result<>(size_t group)>;

  // Borrows the parameters. `groups` are in the order in which they are told.
  ReadyGradients(std::span<const OptimizedParameter> parameters, std::vector<ParameterRange> groups);

  // Runs `backward`, and calls `on_group` for every group, the last ones behind the pass. The first Error ends the
  // calls, and is returned when the pass is over.
  Result<> run(const std::function<void()>& backward, const OnGroup& on_group) const;

  [[nodiscard]] const std::vector<ParameterRange>& groups() const { return groups_; }

 private:
  std::span<const OptimizedParameter> parameters_;
  std::vector<ParameterRange> groups_;
};

}  // namespace mortise
