// What a device keeps of a sample's earlier tokens for penalties and bad words. The draw brings it up to date there, so the
// host may start a draw before it knows the tokens of the one before.
// Memory: 4 bytes for each token of the vocabulary if the sample has penalties. Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "generate/schedule/scheduler.h"
#include "model/device/kernel_table.h"

namespace mortise {

class DeviceHistory {
 public:
  // All tokens that the sample has so far.
  DeviceHistory(RunningSample& sample, int64_t vocab_size, const c10::Device& device);
  // For token number `position` of the completion.
  [[nodiscard]] MortiseCudaEdits edits(const Sampling& params, int64_t position) const;

 private:
  at::Tensor seen_V_;  // int32; undefined without penalties
  at::Tensor lists_;   // int32: the tail, the ends, and the bad words
  int32_t tail_size_ = 0, num_ends_ = 0, num_words_ = 0;
};

// Null if no option of the sample looks at earlier tokens or bars any.
std::shared_ptr<const DeviceHistory> device_history(RunningSample& sample, int64_t vocab_size,
                                                    const c10::Device& device);

}  // namespace mortise
