// The update rules: AdamW, 8-bit AdamW, SGD, Lion, Adafactor and Muon. Each file of rules/ names its paper and the
// implementation that tests compare it with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "learn/optim/update_rule.h"

namespace mortise {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};
std::unique_ptr<const UpdateRule> make_adamw(const AdamWOptions& options);

struct AdamW8BitOptions {
  AdamWOptions adamw;
  int64_t min_size = 4096;      // smaller parameters have moments of float32
  bool embeddings_too = false;  // else embeddings have moments of float32
};
std::unique_ptr<const UpdateRule> make_adamw_8bit(const AdamW8BitOptions& options);

struct SgdOptions {
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
};
std::unique_ptr<const UpdateRule> make_sgd(const SgdOptions& options);

struct LionOptions {
  double beta1 = 0.9;
  double beta2 = 0.99;
};
std::unique_ptr<const UpdateRule> make_lion(const LionOptions& options);

struct AdafactorOptions {
  double eps_square = 1e-30;  // added to the squared gradient
  double eps_scale = 1e-3;    // least root mean square of a parameter, for scale_parameter
  double clip_threshold = 1.0;
  double decay_rate = -0.8;
  std::optional<double> beta1{};
  bool scale_parameter = false;
  bool relative_step = false;
  bool warmup_init = false;
};
std::unique_ptr<const UpdateRule> make_adafactor(const AdafactorOptions& options);

struct MuonOptions {
  AdamWOptions adamw;  // for parameters that are not hidden matrices
  double momentum = 0.95;
  bool nesterov = true;
  int64_t ns_steps = 5;
  bool match_rms_adamw = false;  // adjust_lr_fn
};
std::unique_ptr<const UpdateRule> make_muon(const MuonOptions& options);

// Is this parameter a matrix, or a stack of matrices, that Muon can step?
[[nodiscard]] bool is_muon_matrix(std::string_view name, const at::Tensor& tensor);

}  // namespace mortise
