// Which code computes attention in training on a GPU: libtorch's operators or cuDNN (cudnn_attention.h). Both give other last
// bits. A run therefore chooses before its first pass, once for each class of calls, and keeps the choices in its checkpoints.
// Sampling has attention of its own, and takes no choices.
// Thread rule: one thread chooses, before others read.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "foundation/base/stateful.h"
#include "model/layers/cudnn_attention.h"
#include "model/layers/segment_attention.h"

namespace mortise {

// Calls that share a choice.
struct AttentionClass {
  int64_t heads = 0, kv_heads = 0, dim = 0;
  bool has_window = false;
  int64_t most_keys = 0;  // in the longest sequence: 1,024 times a power of four
  auto operator<=>(const AttentionClass&) const = default;
};
// `longest`: the keys of the longest sequence. A window that holds all of them is none.
AttentionClass attention_class(const AttentionShape& shape, int64_t longest);
// For people: "14 query and 2 key heads of 64 numbers, up to 1024 keys, with a window".
std::string text_of(const AttentionClass& calls);

enum class AttentionCode { kLibtorch, kCudnn };

// Those of a run.
class AttentionChoices final : public Stateful {
 public:
  // For tests and benchmarks: cuDNN computes whatever it takes. It must outlive all passes.
  static AttentionChoices everywhere(CudnnAttention& cudnn);
  AttentionChoices() = default;

  // Without a choice, libtorch computes.
  void set(const AttentionClass& calls, AttentionCode code) { codes_[calls] = code; }
  // Nothing: no choice was made.
  [[nodiscard]] std::optional<AttentionCode> find(const AttentionClass& calls) const;
  [[nodiscard]] bool has(const AttentionClass& calls) const { return find(calls).has_value(); }
  // Has cuDNN been chosen for a class?
  [[nodiscard]] bool need_cudnn() const;
  void use(CudnnAttention* cudnn) { cudnn_ = cudnn; }
  // What computes this call; null: libtorch.
  [[nodiscard]] CudnnAttention* cudnn_for(const AttentionShape& shape, const SegmentLengths& lengths) const;

  // The setting that the choices are for. Choices of a checkpoint with another one are not taken.
  void choose_for(std::string setting) { setting_ = std::move(setting); }
  [[nodiscard]] std::string state_name() const override { return kStateName; }
  [[nodiscard]] bool may_be_missing() const override { return true; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

  static constexpr const char* kStateName = "attention";

 private:
  std::map<AttentionClass, AttentionCode> codes_;
  std::string setting_;
  CudnnAttention* cudnn_ = nullptr;
  bool everywhere_ = false;
};

// The choices that training_attention() reads, in the whole process. Null: libtorch computes everything. The caller keeps
// them until it gives others.
void use_attention_choices(const AttentionChoices* choices);

// segment_attention(), or cuDNN for calls that the choices give it. Only bfloat16 calls (shape.rounds).
at::Tensor training_attention(const at::Tensor& q_NHD, const at::Tensor& k_MHD, const at::Tensor& v_MHD,
                              const SegmentLengths& lengths, const AttentionShape& shape);

// Computes a call: its result, and the gradients of q, k and v.
using AttentionCall = std::function<std::vector<at::Tensor>()>;
// Seconds until the device has done the work.
using WorkTimer = std::function<double(const std::function<void()>& work)>;

struct AttentionTrial {
  AttentionCall libtorch, cudnn;
  WorkTimer seconds;  // empty: nothing is measured, and cuDNN is taken if it computes the call
};

struct AttentionVerdict {
  AttentionCode code = AttentionCode::kLibtorch;
  std::string why;
};

// Computes both. cuDNN is taken if it gives libtorch's numbers (within bfloat16's rounding), the same bits twice, and is
// faster by 5 % or more. A call that fails is a reason, and not an error.
AttentionVerdict try_attention(const AttentionTrial& trial);

// A prompt and up to 16 completions, each of which has `longest` tokens with its prompt: about 16,384 tokens at most, if they
// hold one completion. Precondition: has_cudnn_attention(shape).
AttentionTrial attention_trial(const AttentionShape& shape, int64_t longest, CudnnAttention& cudnn, at::Device device);

// By events on the current stream of a GPU; by a clock on the CPU.
WorkTimer device_timer(at::Device device);

}  // namespace mortise
