/* A KL estimator whose value at a token depends on other tokens too, as plain arrays.
 *
 *     struct Mine : mortise::KlEstimator {
 *       static constexpr std::int32_t coupling = MORTISE_COUPLING_ROW;
 *       void compute(const mortise::KlBatch& batch, mortise::Call call) const;  // KlBatch::put for unmasked tokens
 *     };
 *     MORTISE_PACK(MORTISE_BATCH_KL("mine", Mine))
 *
 * N tokens of B rows, flat; row i has the tokens begin(i) .. end(i). Masked tokens hold anything: skip them. [compute]
 */
#ifndef MORTISE_CPP_BATCH_KL_HPP_
#define MORTISE_CPP_BATCH_KL_HPP_

#include "loss_batch.hpp"
#include "losses.hpp"

namespace mortise {

struct KlBatch {
  KlBatch(const mortise_kl_estimator_in& in, const mortise_kl_estimator_out& out)
      : layout(*in.layout),
        log_prob(detail::floats(in.log_prob, "log_prob", num_tokens())),
        ref_log_prob(detail::floats(in.ref_log_prob, "ref_log_prob", num_tokens())),
        old_log_prob(static_cast<const float*>(mortise_tensor_data(in.old_log_prob))),
        weight(detail::floats(in.weight, "weight", num_tokens())),
        mask(static_cast<const std::uint8_t*>(mortise_tensor_data(in.response_mask))),
        kl(detail::optional_floats(out.kl)),
        grad(detail::optional_floats(out.grad_log_prob)) {}

  std::int64_t num_rows() const { return layout.num_rows; }
  std::int64_t num_tokens() const { return layout.num_tokens; }
  std::int64_t begin(std::int64_t row) const { return layout.row_offsets[row]; }
  std::int64_t end(std::int64_t row) const { return layout.row_offsets[row + 1]; }

  // The token's estimate, and d(sum over all tokens of weight * kl) / d log_prob of this token.
  void put(std::int64_t token, double value, double gradient) const {
    kl[token] = float(value);
    if (grad != nullptr) grad[token] = float(gradient);
  }
  // Calls work(row) for every row, on the host's threads. `work` must not throw.
  template <class F>
  void for_rows(const Call& call, const F& work) const {
    detail::for_rows(call, layout, work);
  }
  // For estimators whose requires_inputs names it.
  const float* required_old_log_prob() const {
    if (old_log_prob == nullptr && num_tokens() > 0)
      fail(MORTISE_INVALID_ARGUMENT, "the input 'old_log_prob' is missing");
    return old_log_prob;
  }

  const mortise_layout& layout;
  const float *log_prob, *ref_log_prob, *old_log_prob, *weight;  // old_log_prob null: the engine has none
  const std::uint8_t* mask;
  float *kl, *grad;  // grad null: value only
};

namespace detail {

template <class T>
struct BatchKlPlugin {
  static_assert(std::is_base_of_v<KlEstimator, T>,
                "MORTISE_BATCH_KL takes a class that derives from mortise::KlEstimator");
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_kl_estimator_in* in,
                              mortise_kl_estimator_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) { plugin.compute(KlBatch(*in, *out), call); });
  }
  static constexpr mortise_kl_estimator_vtable vtable = {
      sizeof(mortise_kl_estimator_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
  static mortise_descriptor describe(const char* name) {
    return detail::describe<T>(MORTISE_KIND_KL_ESTIMATOR, name, T::coupling, &vtable);
  }
};

}  // namespace detail
}  // namespace mortise

#define MORTISE_BATCH_KL(name, ...) MORTISE_OTHER_PLUGIN(name, BatchKlPlugin<__VA_ARGS__>)

#endif  // MORTISE_CPP_BATCH_KL_HPP_
