// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the momentum of a hidden matrix is made orthogonal by a
// Newton-Schulz iteration in bfloat16. Embeddings, heads, norms and biases are stepped by AdamW. Judge:
// torch.optim.Muon, and torch.optim.AdamW for the rest.
//
//   m = momentum m + (1 - momentum) g;  u = nesterov ? (1 - momentum) g + momentum m : m;  o = orthogonal(u)
//   p -= lr weight_decay p;  p -= lr ratio o
//   ratio of a matrix with A rows and B columns: sqrt(max(1, A/B)), or 0.2 sqrt(max(A, B)) with match_rms_adamw
//     (Liu et al., arXiv:2502.16982)
// A parameter with more than two axes is a stack of matrices, each of which is made orthogonal alone. A and B are the sizes
// of a matrix [out, in]: those of gpt-oss's experts, which are [in, out], change places.
#include <ATen/ops/addmm.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "learn/optim/rules.h"
#include "model/weights/names.h"

namespace mortise {

namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;  // coefficients of the iteration
constexpr double kLeastNorm = 1e-7;

at::Tensor orthogonal(const at::Tensor& matrix, int64_t num_steps) {
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16);
  if (is_tall) x = x.t();
  x = x.div(at::linalg_vector_norm(x).clamp_min(kLeastNorm));
  for (int64_t i = 0; i < num_steps; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kB, kC), x, kA, 1.0);
  }
  return is_tall ? x.t() : x;
}

class MuonRule : public UpdateRule {
 public:
  explicit MuonRule(const MuonOptions& options) : options_(options), adamw_(make_adamw(options.adamw)) {}

  [[nodiscard]] bool needs_whole_parameters() const override { return true; }

  [[nodiscard]] std::vector<StateTensor> state_of(const OptimizedParameter& parameter) const override {
    if (!is_orthogonal(parameter)) return adamw_->state_of(parameter);
    return {{"momentum_buffer", parameter.tensor.scalar_type(), parameter.tensor.sizes().vec()}};
  }

  void step(std::span<StepPart> parts, int64_t update, double grad_factor) const override {
    std::vector<StepPart> rest;
    for (StepPart& part : parts) {
      if (!is_orthogonal(*part.parameter)) {
        rest.push_back(part);
      } else if (part.weights.numel() > 0) {
        if (grad_factor != 1.0) part.gradient.mul_(grad_factor);
        step_stack(part);
      }
    }
    if (!rest.empty()) adamw_->step(rest, update, grad_factor);
  }

 private:
  static bool is_orthogonal(const OptimizedParameter& parameter) {
    return is_muon_matrix(parameter.name, parameter.tensor) &&
           parameter.uses_muon.value_or(parameter.role == ParameterRole::kHidden);
  }

  void step_stack(const StepPart& part) const {
    const int64_t rows = part.weights.size(-2), columns = part.weights.size(-1);
    auto a = static_cast<double>(rows), b = static_cast<double>(columns);
    if (is_expert_stack(part.parameter->name)) std::swap(a, b);
    const double ratio = options_.match_rms_adamw ? 0.2 * std::sqrt(std::max(a, b)) : std::sqrt(std::max(1.0, a / b));
    const at::Tensor gradient = part.gradient.reshape({-1, rows, columns});
    const at::Tensor weights = part.weights.view({-1, rows, columns});
    const at::Tensor momentum = part.state[0].view({-1, rows, columns});
    for (int64_t i = 0; i < weights.size(0); ++i) {
      const at::Tensor g = gradient[i], m = momentum[i], p = weights[i];
      m.lerp_(g, 1.0 - options_.momentum);
      const at::Tensor direction = orthogonal(options_.nesterov ? g.lerp(m, options_.momentum) : m, options_.ns_steps);
      p.mul_(1.0 - part.lr * part.weight_decay);
      p.add_(direction, -part.lr * ratio);
    }
  }

  MuonOptions options_;
  std::unique_ptr<const UpdateRule> adamw_;
};

}  // namespace

// The biases of all experts in one tensor (gpt-oss) are rows, not a matrix.
bool is_muon_matrix(std::string_view name, const at::Tensor& tensor) { return tensor.dim() >= 2 && !is_bias(name); }

std::unique_ptr<const UpdateRule> make_muon(const MuonOptions& options) { return std::make_unique<MuonRule>(options); }

}  // namespace mortise
