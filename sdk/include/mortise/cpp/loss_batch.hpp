/* LossBatch: what a loss gets that looks beyond single tokens (ContextLoss, BatchLoss), as plain arrays.
 *
 * N tokens of B rows, flat; row i has the tokens rows(i).begin .. end. Masked tokens hold anything: skip them. Sums
 * over the update are taken row by row (row_sums), so that they are the same for every number of threads.
 */
#ifndef MORTISE_CPP_LOSS_BATCH_HPP_
#define MORTISE_CPP_LOSS_BATCH_HPP_

#include <vector>

#include "plugin.hpp"
#include "token_loop.hpp"

namespace mortise {

namespace detail {

inline const float* floats(const mortise_tensor* t, const char* name, std::int64_t n,
                           std::int32_t device_type = MORTISE_CPU) {
  const auto* data = static_cast<const float*>(mortise_tensor_data(t));
  if (data == nullptr && n > 0) fail(MORTISE_INVALID_ARGUMENT, std::string("the input '") + name + "' is missing");
  if (t != nullptr && t->device_type != device_type) {
    fail(MORTISE_UNIMPLEMENTED,
         std::string("the input '") + name +
             (device_type == MORTISE_CPU ? "' is not in host memory" : "' is on another device"));
  }
  return data;
}
// Where the call's tensors are: in host memory, or on a CUDA device for a loss that takes it.
inline std::int32_t device_of(const mortise_tensor* log_prob, bool accepts_cuda) {
  const bool on_cuda = accepts_cuda && log_prob != nullptr && log_prob->device_type == MORTISE_CUDA;
  return on_cuda ? MORTISE_CUDA : MORTISE_CPU;
}
inline float* optional_floats(const mortise_tensor* t) { return static_cast<float*>(mortise_tensor_data(t)); }

}  // namespace detail

struct LossBatch {
  LossBatch(const mortise_policy_loss_in& in, const mortise_policy_loss_out& out, bool accepts_cuda = false)
      : layout(*in.layout),
        device_type(detail::device_of(in.log_prob, accepts_cuda)),
        device_id(in.log_prob == nullptr ? 0 : in.log_prob->device_id),
        log_prob(detail::floats(in.log_prob, "log_prob", num_tokens(), device_type)),
        old_log_prob(detail::floats(in.old_log_prob, "old_log_prob", num_tokens(), device_type)),
        advantages(detail::floats(in.advantages, "advantages", num_tokens(), device_type)),
        weight(detail::floats(in.weight, "weight", num_tokens(), device_type)),
        mask(static_cast<const std::uint8_t*>(mortise_tensor_data(in.response_mask))),
        loss(detail::optional_floats(out.loss)),
        grad(detail::optional_floats(MORTISE_HAS(&out, grad_log_prob) ? out.grad_log_prob : nullptr)),
        update_index(MORTISE_HAS(&in, update_index) ? in.update_index : 0) {
    if (MORTISE_HAS(&in, rollout_log_prob))
      rollout_log_prob = detail::floats(in.rollout_log_prob, "rollout_log_prob", 0, device_type);
    if (MORTISE_HAS(&in, rollout_is_weights))
      rollout_is_weights = detail::floats(in.rollout_is_weights, "rollout_is_weights", 0, device_type);
  }

  std::int64_t num_rows() const { return layout.num_rows; }
  std::int64_t num_tokens() const { return layout.num_tokens; }
  std::int64_t begin(std::int64_t row) const { return layout.row_offsets[row]; }
  std::int64_t end(std::int64_t row) const { return layout.row_offsets[row + 1]; }

  // Sets the token's loss, and d loss / d log_prob of this token times its weight. That is the gradient if no other
  // token's loss depends on this log-prob.
  void put(std::int64_t token, Dual value) const { put(token, value.value, double(weight[token]) * value.slope); }
  // The same with the whole gradient. With weight 0 it is 0.
  void put(std::int64_t token, double value, double gradient) const {
    loss[token] = float(value);
    if (grad != nullptr) grad[token] = weight[token] == 0.0F ? 0.0F : float(gradient);
  }

  // Calls work(row) for every row, on the host's threads. `work` must not throw.
  template <class F>
  void for_rows(const Call& call, const F& work) const {
    detail::for_rows(call, layout, work);
  }
  // The sum of value(token) over the unmasked tokens of every row.
  template <class F>
  std::vector<double> row_sums(const Call& call, const F& value) const {
    std::vector<double> sums(static_cast<std::size_t>(num_rows()));
    for_rows(call, [&](std::int64_t row) {
      double sum = 0;
      for (std::int64_t t = begin(row); t < end(row); ++t) {
        if (mask[t] != 0) sum += value(t);
      }
      sums[std::size_t(row)] = sum;
    });
    return sums;
  }
  template <class F>
  double sum(const Call& call, const F& value) const {
    double total = 0;
    for (const double x : row_sums(call, value)) total += x;
    return total;
  }
  // For losses whose requires_inputs names it.
  const float* required_rollout_log_prob() const {
    if (rollout_log_prob == nullptr && num_tokens() > 0)
      fail(MORTISE_INVALID_ARGUMENT, "the input 'rollout_log_prob' is missing");
    return rollout_log_prob;
  }
  double log_ratio(std::int64_t token) const { return double(log_prob[token]) - double(old_log_prob[token]); }

  const mortise_layout& layout;  // in host memory
  // MORTISE_CPU, or MORTISE_CUDA for a loss with accepts_cuda: then the arrays are memory of that device, and the
  // functions above, which read them here, must not be called.
  std::int32_t device_type, device_id;
  const float *log_prob, *old_log_prob, *advantages, *weight;
  const std::uint8_t* mask;
  float *loss, *grad;                                                      // grad null: value only
  const float *rollout_log_prob = nullptr, *rollout_is_weights = nullptr;  // null: the engine has none
  std::int64_t update_index;
};

}  // namespace mortise

#endif  // MORTISE_CPP_LOSS_BATCH_HPP_
