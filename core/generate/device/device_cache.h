// Keys and values of the samples that run on a device. Each sample has a slot; slots are dense, and the last one moves into
// the place of one that leaves.
//
// make_slot_cache: by libtorch's operators, on any device. One tensor for each layer, with slots as long as the longest sample.
// A step reads all slots up to the longest and masks the rest.
// make_paged_cache: by kernels. Pages of 16 tokens; samples of a group share the full pages of their prompt. A step reads what
// each sample has. Pages for the longest completion are taken when a sample enters, so that the table of pages changes only
// when samples come or go.
// Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "generate/device/kernel_table.h"
#include "model/model.h"

namespace mortise {

// The slots of the samples of a new sequence.
struct NewSlots {
  int64_t first = 0;
  int64_t count = 0;
  int64_t length = 0;  // tokens of the sequence
};

class DeviceCache {
 public:
  virtual ~DeviceCache() = default;
  // Before a step: makes room for num_slots slots, the longest of them with `longest` tokens. The cache keeps what it has.
  virtual void prepare(int64_t num_slots, int64_t longest) = 0;
  // One slot for each sample of a new sequence of `length` tokens, which grows to at most `most_tokens`.
  virtual void add_slots(int64_t count, int64_t length, int64_t most_tokens) = 0;
  virtual void remove_slot(int64_t slot) = 0;
  virtual void clear() = 0;  // no slots
  virtual void free() = 0;   // no slots, and no memory
  // Writes keys and values of a new sequence's tokens, from token `begin` on, into its slots. qkv_LQ is rotated.
  virtual void fill(int64_t layer, const NewSlots& slots, int64_t begin, const at::Tensor& qkv_LQ) = 0;
  // Keys and values of the first `length` tokens of a slot, each [length, heads, D] as the cache has them.
  virtual std::pair<at::Tensor, at::Tensor> read(int64_t layer, int64_t slot, int64_t length) = 0;
  // For a pass of one more token in every slot: how its layers read and write the cache. `positions_N`: how many
  // tokens each slot has, on the model's device. `options` must not outlive the cache and the positions.
  virtual void read_by(const at::Tensor& positions_N, int64_t longest, ForwardOptions& options) = 0;
};

std::unique_ptr<DeviceCache> make_slot_cache(const Model& model);
// Precondition: serves_kernels(model).
std::unique_ptr<DeviceCache> make_paged_cache(const Model& model, const DeviceKernels& kernels);
// Whether the kernels compute what a step of this model needs: float32, and heads of at most 256 numbers.
[[nodiscard]] bool serves_kernels(const Model& model);

}  // namespace mortise
