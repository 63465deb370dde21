// Makes aligned tensor views, guards outputs, and copies results back.
#include "plugin/host/kinds/tensor_args.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "foundation/base/text.h"
#include "mortise/pack.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/guard.h"

namespace mortise {
namespace {

constexpr size_t kAlign = 64;
// What empty tensors point to: never null, aligned.
alignas(kAlign) std::byte nothing[kAlign];

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kAlign == 0; }

}  // namespace

void TensorArgs::FreeAligned::operator()(void* memory) const { std::free(memory); }

void* TensorArgs::scratch(size_t bytes) {
  void* memory = std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
  if (memory == nullptr) throw std::bad_alloc();
  memory_.emplace_back(memory);
  return memory;
}

void* TensorArgs::aligned_copy(const void* data, size_t bytes) {
  if (bytes == 0) return nothing;
  // Plugins promise not to change inputs; the C struct has one pointer type for both.
  if (is_aligned(data)) return const_cast<void*>(data);
  void* memory = scratch(bytes);
  std::memcpy(memory, data, bytes);
  return memory;
}

const mortise_tensor* TensorArgs::add(void* data, uint8_t code, uint8_t bits, std::vector<int64_t> shape) {
  Slot& slot = slots_.emplace_back();
  slot.shape = std::move(shape);
  slot.strides.resize(slot.shape.size());
  int64_t stride = 1;
  for (size_t i = slot.shape.size(); i-- > 0;) {
    slot.strides[i] = stride;
    stride *= slot.shape[i];
  }
  slot.tensor = {data,
                 MORTISE_CPU,
                 0,
                 static_cast<int32_t>(slot.shape.size()),
                 code,
                 bits,
                 1,
                 slot.shape.data(),
                 slot.strides.data(),
                 0};
  return &slot.tensor;
}

const mortise_tensor* TensorArgs::add_sent(Sent sent, uint8_t code, uint8_t bits, std::vector<int64_t> shape) {
  add(nullptr, code, bits, std::move(shape));
  sent.tensor = &slots_.back().tensor;
  sent_.push_back(sent);
  return sent.tensor;
}

void TensorArgs::lies_on_device(mortise_tensor& tensor, std::byte* data) const {
  tensor.data = data;
  tensor.device_type = device_->type();
  tensor.device_id = device_->index();
}

const mortise_tensor* TensorArgs::device_input(std::span<const std::byte> values, uint8_t code, uint8_t bits,
                                               std::vector<int64_t> shape) {
  std::byte* const held = values.empty() ? nullptr : device_->find_held(values);
  if (held == nullptr) return add_sent({.is_output = false, .input = values}, code, bits, std::move(shape));
  add(nullptr, code, bits, std::move(shape));
  lies_on_device(slots_.back().tensor, held);
  return &slots_.back().tensor;
}

const mortise_tensor* TensorArgs::input(std::span<const float> values, std::span<const int64_t> shape) {
  std::vector<int64_t> axes(shape.begin(), shape.end());
  if (axes.empty()) axes = {static_cast<int64_t>(values.size())};
  if (device_ != nullptr) return device_input(std::as_bytes(values), MORTISE_FLOAT, 32, std::move(axes));
  return add(aligned_copy(values.data(), values.size_bytes()), MORTISE_FLOAT, 32, std::move(axes));
}

const mortise_tensor* TensorArgs::input(std::span<const uint8_t> values) {
  if (device_ != nullptr)
    return device_input(std::as_bytes(values), MORTISE_UINT, 8, {static_cast<int64_t>(values.size())});
  return add(aligned_copy(values.data(), values.size_bytes()), MORTISE_UINT, 8, {static_cast<int64_t>(values.size())});
}

// Where the plugin writes: the values themselves, or memory that finish() copies from.
void* TensorArgs::place(std::span<float> values, std::string_view name) {
  void* data = values.data();
  if (values.empty()) data = nothing;
  if (in_place_ && !values.empty()) {
    guards_.push_back({name, GuardedOutput(data, values.size_bytes())});
  } else if (guarded_ || in_place_) {
    guards_.push_back({name, GuardedOutput(values.size_bytes())});
    data = guards_.back().memory.data();
    copies_.push_back({data, values});
  } else if (!is_aligned(data)) {
    data = scratch(values.size_bytes());
    copies_.push_back({data, values});
  }
  return data;
}

const mortise_tensor* TensorArgs::add_output(std::span<float> values, std::string_view name, bool zeroed) {
  const auto size = static_cast<int64_t>(values.size());
  // What a plugin leaves out that fills its outputs is found by its NaN.
  std::optional<float> fill;
  if (zeroed || guarded_) fill = zeroed ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  if (device_ != nullptr)
    return add_sent({.is_output = true, .output = values, .name = name, .fill = fill}, MORTISE_FLOAT, 32, {size});
  auto* const data = static_cast<float*>(place(values, name));
  if (fill) std::fill_n(data, values.size(), *fill);
  return add(data, MORTISE_FLOAT, 32, {size});
}

const mortise_tensor* TensorArgs::output(std::span<float> values, std::string_view name) {
  return add_output(values, name, /*zeroed=*/!writes_all_);
}

const mortise_tensor* TensorArgs::zeroed_output(std::span<float> values, std::string_view name) {
  return add_output(values, name, /*zeroed=*/true);
}

// Inputs first, then outputs with a fill and those without, with room for guard words around them.
void TensorArgs::place_sent() {
  const auto aligned = [](size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; };
  std::ranges::stable_sort(
      sent_, {}, [](const Sent& one) { return std::pair(one.is_output, one.is_output && !one.fill.has_value()); });
  const size_t guard = guarded_ ? GuardedOutput::kGuardBytes : 0;
  size_t at = 0;
  for (Sent& one : sent_) {
    if (!one.is_output) {
      one.at = at;
      at += aligned(one.input.size());
      outputs_at_ = at;
    } else {
      one.at = at + guard;
      at = one.at + aligned(one.output.size_bytes() + guard);
    }
    if (!one.is_output || one.fill) num_sent_ = at;
  }
  num_bytes_ = std::max(at, kAlign);
}

Result<> TensorArgs::send_all() {
  place_sent();
  on_device_ = TRY(device_->mirror(num_bytes_));
  for (const Sent& one : sent_) {
    std::byte* const host = on_device_->host() + one.at;
    if (!one.is_output) {
      std::ranges::copy(one.input, host);
    } else {
      if (guarded_) guards_.push_back({one.name, GuardedOutput(host, one.output.size_bytes())});
      if (one.fill) std::fill_n(reinterpret_cast<float*>(host), one.output.size(), *one.fill);
      copies_.push_back({host, one.output});
    }
    lies_on_device(*one.tensor, on_device_->device() + one.at);
  }
  return num_sent_ > 0 ? on_device_->send(num_sent_) : Result<>();
}

Result<> TensorArgs::send(const PluginInstance& instance, std::string_view slot, int64_t step) {
  if (device_ == nullptr) return {};
  Result<> sent = send_all();
  if (sent.ok()) return {};
  Error error = instance.error(slot, step, sent.error().what, sent.error().next);
  error.kind = sent.error().kind;  // a full memory is no fault of the plugin
  return error;
}

Result<> TensorArgs::receive(const PluginInstance& instance, std::string_view slot, int64_t step) {
  if (on_device_ == nullptr) return {};
  auto received = on_device_->receive(outputs_at_, num_bytes_ - outputs_at_);
  if (received.ok()) return {};
  return instance.error(slot, step, "the device failed after it: " + received.error().what, "tell the pack's author");
}

Result<> TensorArgs::check_guards(const PluginInstance& instance, std::string_view slot, int64_t step,
                                  const Layout& layout) const {
  for (const Guarded& one : guards_) {
    const std::string damage = one.memory.damage();
    if (damage.empty()) continue;
    const bool behind = damage.find("behind") != std::string::npos;
    const auto tokens = static_cast<size_t>(layout.num_tokens());
    std::string where;
    if (tokens > 0)
      where =
          behind ? ", whose last is " + token_place(layout, tokens - 1) : ", whose first is " + token_place(layout, 0);
    return instance.error(slot, step, fmt::format("{} output {}{}", damage, quote(one.name), where),
                          "an output has num_tokens elements; tell the pack's author (rule R33)");
  }
  return {};
}

void TensorArgs::finish() {
  for (const Copy& copy : copies_) {
    if (!copy.to.empty()) std::memcpy(copy.to.data(), copy.from, copy.to.size_bytes());
  }
  copies_.clear();
}

bool writes_all(const PluginInfo& plugin) { return (plugin.flags & MORTISE_FLAG_WRITES_ALL) != 0; }

mortise_layout c_layout(const Layout& layout) {
  auto out = make_abi_struct<mortise_layout>();
  out.num_rows = layout.num_rows();
  out.num_tokens = layout.num_tokens();
  out.row_offsets = layout.row_offsets.data();
  out.row_id = layout.row_id.data();
  out.group_index = layout.group_index.data();
  return out;
}

Result<> check_layout(const PluginInstance& instance, std::string_view slot, int64_t step, const Layout& layout) {
  const auto& offsets = layout.row_offsets;
  const auto rows = static_cast<size_t>(layout.num_rows());
  const bool ascending = !offsets.empty() && offsets.front() == 0 && std::is_sorted(offsets.begin(), offsets.end());
  if (ascending && layout.row_id.size() == rows && layout.group_index.size() == rows) return {};
  Error error = instance.error(
      slot, step, "was called with a layout that is not one: offsets from 0 upwards, an id and a group for every row",
      "this is a bug of the engine");
  error.kind = ErrorKind::kInternal;
  return error;
}

Result<> check_sizes(const PluginInstance& instance, std::string_view slot, int64_t step,
                     std::span<const InputSize> inputs) {
  for (const InputSize& input : inputs) {
    const bool needed = input.mandatory || instance.info().requires_input(input.name);
    if (static_cast<int64_t>(input.size) == input.want || (!needed && input.size == 0)) continue;
    if (input.size == 0 && !input.mandatory) {
      return instance.error(slot, step,
                            fmt::format("requires the input {}, which this run does not have", quote(input.name)),
                            "turn on the setting that computes it, or choose another plugin");
    }
    Error error = instance.error(
        slot, step, fmt::format("{} has {} elements instead of {}", quote(input.name), input.size, input.want),
        "this is a bug of the engine");
    error.kind = ErrorKind::kInternal;
    return error;
  }
  // A plugin built for a newer host may ask for inputs that this one does not know.
  for (const std::string& name : instance.info().requires_inputs) {
    const bool known =
        std::any_of(inputs.begin(), inputs.end(), [&](const InputSize& input) { return input.name == name; });
    if (!known)
      return instance.error(slot, step,
                            fmt::format("requires the input {}, which this host does not know", quote(name)),
                            "update mortise");
  }
  return {};
}

}  // namespace mortise
