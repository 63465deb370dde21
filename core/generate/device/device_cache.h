// Keys and values of the samples that run on a device. Each sample has a slot; slots are dense, and the last one moves into
// the place of one that leaves.
//
// make_slot_cache: by libtorch's operators, on any device. One tensor for each layer, with slots as long as the longest sample.
// A pass reads all slots up to the longest and masks the rest.
// make_paged_cache: by kernels. The scheduler says which pages of 16 tokens each sample has: those of its prompt, which others
// may have too, and those of its longest completion. A pass reads what each sample has, and the table of pages changes only
// when samples come or go. Memory for pages doubles when they run out, up to all that the scheduler may give out. The first
// samples after free() get the memory that it freed, at once.
// Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "generate/decode/kv_cache.h"
#include "model/device/kernel_table.h"
#include "model/model.h"

namespace mortise {

// Tokens of a sequence that enters: `count` of its `length` tokens from `begin` on, into the slots of its samples.
struct DevicePiece {
  std::vector<int64_t> slots;
  int64_t length = 0, begin = 0, count = 0;
};

// The rows of a pass: one more token for each of some slots, then pieces of sequences that enter.
struct DevicePass {
  std::vector<int64_t> slots;
  int64_t longest = 0;  // most tokens that one of them has before the pass
  std::vector<DevicePiece> pieces;
  at::Tensor positions_N;  // by row, on the model's device
  at::Tensor table_NP;     // by kernels: the pages of each row, if the caller has them there

  [[nodiscard]] int64_t num_decoding() const { return static_cast<int64_t>(slots.size()); }
};

// A slot for each of `count` samples of a new sequence, which has `length` tokens and grows to at most `most_tokens`. By
// kernels: the pages of each sample, in the order of its tokens.
struct NewSlots {
  int64_t count = 0, length = 0, most_tokens = 0;
  std::vector<std::vector<float*>> pages = {};
};

class DeviceCache {
 public:
  virtual ~DeviceCache() = default;
  // Before several calls of add_slots: makes room for all of them at once.
  virtual void reserve(std::span<const NewSlots> slots) = 0;
  virtual void add_slots(const NewSlots& slots) = 0;
  // Before a step: makes room for num_slots slots, the longest of them with `longest` tokens. The cache keeps what it has.
  virtual void prepare(int64_t num_slots, int64_t longest) = 0;
  virtual void remove_slot(int64_t slot) = 0;
  virtual void clear() = 0;  // no slots
  virtual void free() = 0;   // no slots, and no memory
  // How the layers of a pass read and write the cache. `options` must not outlive the cache and the pass.
  virtual void read_by(const DevicePass& pass, ForwardOptions& options) = 0;
};

inline constexpr int32_t kPaddingPage = 0;  // no sample has this page

class PagedDeviceCache : public DeviceCache {
 public:
  // The pages of each row of a pass, on the model's device.
  virtual at::Tensor rows_of_table(const DevicePass& pass) = 0;
  // Another number after memory has moved that a pass reads or writes, except the tensors of the pass itself.
  [[nodiscard]] virtual uint64_t layout() const = 0;
};

// `layers`: the shapes of the layers whose keys and values it has; those of the model, or of this rank's part.
std::unique_ptr<DeviceCache> make_slot_cache(const Model& model, const ModelConfig& layers);
// Precondition: serves_kernels(model). `kv`: what the pages of NewSlots are of.
std::unique_ptr<PagedDeviceCache> make_paged_cache(const Model& model, const ModelConfig& layers,
                                                   const DeviceKernels& kernels, const KvCache& kv);
// The kernels that sample from this model and keep its keys and values in pages; null: there are none.
[[nodiscard]] const DeviceKernels* paged_kernels(const Model& model);
// Whether the kernels compute what a step of this model needs: float32, and heads of at most 256 numbers.
[[nodiscard]] bool serves_kernels(const Model& model);

}  // namespace mortise
