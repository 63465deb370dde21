// Spans of the engine as tensor views of the C ABI, for the duration of one call.
//
// The ABI promises 64-byte aligned data. A span with another alignment is copied into aligned scratch, and outputs are
// copied back at the end (finish()). Outputs are set to 0 first. In runs with plugins.check, and in workers, they are
// between guard words. A plugin that takes tensors of the run's device gets them there: one copy to the device before
// the call (send()) of the inputs that it does not hold yet (HeldBytes), and one back of the outputs (receive()).
// Cost: nothing for aligned inputs; one pass over outputs.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "mortise/tensor.h"
#include "plugin/host/devices.h"
#include "plugin/host/guarded_output.h"
#include "plugin/host/instance.h"
#include "plugin/host/kinds/layout.h"

namespace mortise {

class TensorArgs {
 public:
  TensorArgs() = default;
  // As the instance's RunKey says. writes_all: the plugin fills its outputs, which then are not zeroed first
  // (MORTISE_FLAG_WRITES_ALL). With check_writes they are NaN in that case: what it leaves out is found.
  explicit TensorArgs(const PluginInstance& instance, bool writes_all = false)
      : device_(instance.device()),
        guarded_(instance.key().check_writes),
        in_place_(instance.key().in_worker),
        writes_all_(writes_all) {}
  TensorArgs(const TensorArgs&) = delete;
  TensorArgs& operator=(const TensorArgs&) = delete;

  // The shape defaults to one axis.
  const mortise_tensor* input(std::span<const float> values, std::span<const int64_t> shape = {});
  const mortise_tensor* input(std::span<const uint8_t> values);
  // `name` is for error texts and must outlive the call. zeroed_output: zeroed whatever the plugin declares.
  const mortise_tensor* output(std::span<float> values, std::string_view name = "");
  const mortise_tensor* zeroed_output(std::span<float> values, std::string_view name);
  // These two do nothing for tensors in host memory. send(): after all inputs and outputs were added; the stream is there
  // from then on. receive(): after every call, also one that failed. It waits for the stream.
  Result<> send(const PluginInstance& instance, std::string_view slot, int64_t step);
  [[nodiscard]] void* stream() const { return on_device_ == nullptr ? nullptr : on_device_->stream(); }
  Result<> receive(const PluginInstance& instance, std::string_view slot, int64_t step);
  // An error if the plugin wrote outside a guarded output.
  [[nodiscard]] Result<> check_guards(const PluginInstance& instance, std::string_view slot, int64_t step,
                                      const Layout& layout) const;
  // Copies outputs that went through scratch to where they belong.
  void finish();

 private:
  struct Slot {
    mortise_tensor tensor{};
    std::vector<int64_t> shape, strides;
  };
  struct FreeAligned {
    void operator()(void* memory) const;
  };
  struct Copy {
    const void* from;
    std::span<float> to;
  };
  struct Guarded {
    std::string_view name;
    GuardedOutput memory;
  };
  // A tensor that gets memory on the device from send(), which brings all but outputs without a fill.
  struct Sent {
    bool is_output;
    std::span<const std::byte> input{};
    std::span<float> output{};
    std::string_view name{};
    std::optional<float> fill{};  // what the output begins with
    mortise_tensor* tensor = nullptr;
    size_t at = 0;  // its place in on_device_
  };
  const mortise_tensor* add_sent(Sent sent, uint8_t code, uint8_t bits, std::vector<int64_t> shape);
  const mortise_tensor* device_input(std::span<const std::byte> values, uint8_t code, uint8_t bits,
                                     std::vector<int64_t> shape);
  void lies_on_device(mortise_tensor& tensor, std::byte* data) const;
  void place_sent();
  Result<> send_all();
  void* place(std::span<float> values, std::string_view name);
  const mortise_tensor* add_output(std::span<float> values, std::string_view name, bool zeroed);
  const mortise_tensor* add(void* data, uint8_t code, uint8_t bits, std::vector<int64_t> shape);
  void* scratch(size_t bytes);
  void* aligned_copy(const void* data, size_t bytes);

  std::deque<Slot> slots_;  // a deque, so that pointers to slots remain valid
  std::vector<std::unique_ptr<void, FreeAligned>> memory_;
  std::vector<Copy> copies_;
  std::vector<Sent> sent_;
  PluginDevice* device_ = nullptr;  // null: host memory
  std::unique_ptr<MirroredBytes> on_device_;
  size_t outputs_at_ = 0, num_bytes_ = 0;  // in on_device_; outputs are behind the inputs
  size_t num_sent_ = 0;                    // bytes of on_device_ that go there
  bool guarded_ = false;                   // outputs between guard words
  bool in_place_ = false;                  // between guard words where they are, which costs no copy
  bool writes_all_ = false;                // outputs are not zeroed
  std::vector<Guarded> guards_;
};

// Whether the plugin fills its outputs (MORTISE_FLAG_WRITES_ALL).
[[nodiscard]] bool writes_all(const PluginInfo& plugin);

// The C view of a layout. Borrows.
[[nodiscard]] mortise_layout c_layout(const Layout& layout);

// Offsets ascending from 0, ids as long as rows.
[[nodiscard]] Result<> check_layout(const PluginInstance& instance, std::string_view slot, int64_t step,
                                    const Layout& layout);

// One input of a call, checked by length and by the plugin's `requires`.
struct InputSize {
  std::string_view name;
  size_t size = 0;
  int64_t want = 0;
  bool mandatory = true;
};
[[nodiscard]] Result<> check_sizes(const PluginInstance& instance, std::string_view slot, int64_t step,
                                   std::span<const InputSize> inputs);

}  // namespace mortise
