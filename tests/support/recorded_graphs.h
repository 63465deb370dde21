// Graphs without a GPU: what starts while work is captured is written down, with its pointers and arguments, and a replay starts
// exactly this again. Kernels of the emulator are not run while they are captured. libtorch's operators are, because they tell
// the sizes of their results; a replay computes them again and puts the results where they were. So whatever the host put into
// captured memory, or into an argument, is the same in each replay: a pass that needed another value gives other tokens. Memory
// that is only allocated is filled with NaN by each replay, and operators that wait for the device are errors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "generate/device/step_graphs.h"
#include "model/tensor/product.h"
#include "support/started_kernels.h"

namespace mortise::test {

using Tape = std::vector<std::function<void()>>;

struct GraphCounts {
  int64_t warm_ups = 0, captures = 0, replays = 0;
  int64_t started = 0;  // kernels and operators that compute, in all captures
  // Copies of bfloat16 numbers as float32, which are not counted there: the CPU's products need them.
  int64_t widened = 0;
};

class RecordedGraphs final : public StepGraphs {
 public:
  // Since the last reset().
  static GraphCounts& counts() { return counts_; }
  static void reset() { counts_ = {}; }
  // Where work is being captured; null: nowhere.
  static Tape*& tape() { return tape_; }

  void warm_up(const std::function<void()>& work) override {
    ++counts_.warm_ups;
    work();
  }
  std::unique_ptr<StepGraph> capture(const std::function<void()>& work) override {
    ++counts_.captures;
    auto out = std::make_unique<Recorded>();
    const OperatorProducts products;
    const c10::impl::IncludeDispatchKeyGuard operators(c10::DispatchKey::TESTING_ONLY_GenericMode);
    tape_ = &out->tape;
    try {
      work();
    } catch (...) {
      tape_ = nullptr;
      throw;
    }
    tape_ = nullptr;
    return out;
  }

  // A kernel is captured.
  static void note_kernel(std::function<void()> start) {
    ++counts_.started;
    tape_->push_back(std::move(start));
  }

  // The fallback of all operators.
  static void note(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::TESTING_ONLY_GenericMode);
    const std::string& name = op.schema().name();
    static const std::set<std::string> waits = {
        "aten::_local_scalar_dense", "aten::item",  "aten::is_nonzero",  "aten::nonzero",
        "aten::masked_select",       "aten::equal", "aten::_pin_memory", "aten::unique_dim"};
    TORCH_CHECK(!waits.contains(name), name, " waits for the device, so it cannot be captured");
    const size_t num_arguments = op.schema().arguments().size(), num_results = op.schema().returns().size();
    const std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(num_arguments), stack->end());
    op.callBoxed(stack);
    const std::vector<c10::IValue> results(stack->end() - static_cast<std::ptrdiff_t>(num_results), stack->end());
    const bool only_allocates = name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
    if (tape_ == nullptr) return;
    if (!only_allocates && computes(op.schema(), arguments, results))
      ++(is_widening(arguments, results) ? counts_.widened : counts_.started);
    tape_->push_back([op, arguments, results, only_allocates] {
      if (only_allocates) return spoil(results.at(0).toTensor());
      torch::jit::Stack again = arguments;
      op.callBoxed(&again);
      for (size_t i = 0; i < results.size(); ++i) put_back(again.at(i), results[i]);
    });
  }

 private:
  static bool is_widening(const std::vector<c10::IValue>& arguments, const std::vector<c10::IValue>& results) {
    if (results.size() != 1 || !results[0].isTensor() || !arguments[0].isTensor()) return false;
    const at::Tensor &from = arguments[0].toTensor(), &to = results[0].toTensor();
    return from.scalar_type() == at::kBFloat16 && to.scalar_type() == at::kFloat;
  }
  // Does the operator write numbers? Views do not.
  static bool computes(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments,
                       const std::vector<c10::IValue>& results) {
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].isTensor() || !results[i].toTensor().defined()) continue;
      const at::Tensor& result = results[i].toTensor();
      const c10::AliasInfo* const alias = schema.returns()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) return true;
      const auto is_source = [&](const c10::IValue& value) {
        if (!value.isTensor() || !value.toTensor().defined()) return false;
        return value.toTensor().is_alias_of(result);
      };
      if (std::ranges::none_of(arguments, is_source)) return true;
    }
    return false;
  }

  class Recorded final : public StepGraph {
   public:
    void replay() override {
      ++counts_.replays;
      for (const auto& start : tape) start();
    }
    Tape tape;
  };

  static void spoil(const at::Tensor& memory) {
    if (memory.numel() > 0) std::memset(memory.mutable_data_ptr(), 0xFF, memory.nbytes());
  }
  // Views and what operators change in place are where they were.
  static void put_back(const at::Tensor& now, const at::Tensor& then) {
    if (!then.defined() || then.numel() == 0 || now.const_data_ptr() == then.const_data_ptr()) return;
    then.copy_(now);
  }
  static void put_back(const c10::IValue& now, const c10::IValue& then) {
    if (then.isTensor()) return put_back(now.toTensor(), then.toTensor());
    if (!then.isTensorList()) return;
    for (size_t i = 0; i < then.toTensorList().size(); ++i)
      put_back(now.toTensorList().get(i), then.toTensorList().get(i));
  }

  static inline Tape* tape_ = nullptr;     // NOLINT: operators and kernels are plain functions
  static inline GraphCounts counts_ = {};  // NOLINT
};

// A kernel that can be captured. Ranks that are threads start one at a time, because the emulator has one machine.
template <auto kKernel>
struct Capturable;
template <class... Arguments, int (*kKernel)(Arguments...)>
struct Capturable<kKernel> {
  static int start(Arguments... arguments) {
    const std::lock_guard lock(AroundKernels::mutex);
    if (RecordedGraphs::tape() == nullptr) return kKernel(arguments...);
    RecordedGraphs::note_kernel([=] { kKernel(arguments...); });
    return 0;
  }
};

// While one lives, sampling by the code of a device uses such graphs.
class UseRecordedGraphs {
 public:
  UseRecordedGraphs() {
    RecordedGraphs::reset();
    set_step_graphs([]() -> std::unique_ptr<StepGraphs> { return std::make_unique<RecordedGraphs>(); });
  }
  UseRecordedGraphs(const UseRecordedGraphs&) = delete;
  UseRecordedGraphs& operator=(const UseRecordedGraphs&) = delete;
  ~UseRecordedGraphs() { set_step_graphs(nullptr); }
};

}  // namespace mortise::test
