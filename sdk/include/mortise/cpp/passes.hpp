/* Passes over the tokens of a call: how a loss that looks beyond single tokens is written once for host memory and CUDA
 * devices.
 *
 *     struct Tapered : mortise::ContextLoss {
 *       static constexpr bool accepts_cuda = true;
 *       struct LogRatio {
 *         using Sums = double;
 *         MORTISE_HD void operator()(const mortise::TokenColumns& in, std::int64_t t, double& sum) const {
 *           sum += in.log_ratio(t);
 *         }
 *       };
 *       struct Weight {
 *         MORTISE_HD double operator()(const mortise::TokenColumns& in, std::int64_t t, double row) const {
 *           return in.advantages[t] >= 0 ? 1.0 : row;
 *         }
 *       };
 *       template <class Passes>
 *       void context(const Passes& passes, const mortise::Call&) const {
 *         std::vector<double> rows = passes.row_sums(LogRatio{});
 *         for (double& row : rows) row = std::exp(std::min(row, 0.0));
 *         passes.set_numbers(Weight{}, rows);
 *       }
 *       template <class Real>
 *       MORTISE_HD Real token(Real logp, double old_logp, double adv, double weight) const { ... }
 *     };
 *
 * The functions of a pass are structs of numbers (a kernel gets their bytes) and see unmasked tokens alone. What a pass
 * returns is in host memory, and the code between two passes runs there. On a device a pass is one launch, a block of
 * threads for each row (cuda_passes.hpp); a pass that returns something waits for the stream. Sums have a fixed order.
 */
#ifndef MORTISE_CPP_PASSES_HPP_
#define MORTISE_CPP_PASSES_HPP_

#include <type_traits>
#include <vector>

#include "choice.hpp"
#include "loss_batch.hpp"

namespace mortise {

// The inputs of a call, where its tensors are. Null: the call does not have it.
struct TokenColumns {
  const float *log_prob = nullptr, *old_log_prob = nullptr, *advantages = nullptr, *weight = nullptr;
  const float *rollout_log_prob = nullptr, *rollout_is_weights = nullptr;  // losses alone
  const float* ref_log_prob = nullptr;                                     // KL estimators alone
  const std::uint8_t* mask = nullptr;

  MORTISE_HD double log_ratio(std::int64_t t) const { return double(log_prob[t]) - double(old_log_prob[t]); }
  // A loss has no gradient at a token of weight 0.
  MORTISE_HD double unless_weightless(std::int64_t t, double gradient) const {
    return weight[t] == 0.0F ? 0.0 : gradient;
  }
};

// What put() sets at a token: its loss or KL, and d(sum over all tokens of weight * value) / d log_prob of this token.
struct TokenValue {
  double value, gradient;
};

// What the passes on the host and those on a device have in common.
struct PassCall {
  const Call& call;
  const mortise_layout& layout;  // in host memory
  TokenColumns columns;          // where the call's tensors are
  std::int64_t update_index;

  // The rows in the order of their names.
  std::vector<std::int64_t> rows_by_name() const {
    std::vector<std::int64_t> order(std::size_t(layout.num_rows));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = std::int64_t(i);
    const std::int64_t* id = layout.row_id;
    std::sort(order.begin(), order.end(), [id](std::int64_t a, std::int64_t b) { return id[a] < id[b]; });
    return order;
  }
  // f(place, token) of every token, masked ones too, in the order of the rows' names; `place` counts the rows in this
  // order. Choices use it, so that they do not depend on the order of the call.
  template <class F>
  void by_name(const F& f) const {
    const std::vector<std::int64_t> order = rows_by_name();
    for (std::size_t place = 0; place < order.size(); ++place) {
      const std::int64_t* const offset = layout.row_offsets + order[place];
      for (std::int64_t t = offset[0]; t < offset[1]; ++t) f(place, std::size_t(t));
    }
  }
  // For plugins whose requires_inputs names the column.
  void require(const float* column, const char* name) const {
    if (column == nullptr && layout.num_tokens > 0)
      fail(MORTISE_INVALID_ARGUMENT, std::string("the input '") + name + "' is missing");
  }
};

class HostPasses : public PassCall {
 public:
  HostPasses(const PassCall& of, const detail::TokenArrays& arrays, std::vector<double>* numbers = nullptr)
      : PassCall(of), loss_(arrays.out), grad_(arrays.grad), numbers_(numbers) {}

  // f(columns, token, sums) adds the token to the sums of its row. F::Sums is a double, or a struct of doubles.
  template <class F>
  std::vector<typename F::Sums> row_sums(const F& f) const {
    std::vector<typename F::Sums> out(static_cast<std::size_t>(layout.num_rows));
    detail::for_rows(call, layout, [&](std::int64_t row) {
      const TokenColumns in = columns;
      typename F::Sums sums{};  // in registers
      for (std::int64_t t = layout.row_offsets[row]; t < layout.row_offsets[row + 1]; ++t) {
        if (in.mask[t] != 0) f(in, t, sums);
      }
      out[std::size_t(row)] = sums;
    });
    return out;
  }
  // f(columns, token) of every token, and `masked` at the others.
  template <class F, class Value>
  std::vector<Value> values(const F& f, Value masked) const {
    std::vector<Value> out(static_cast<std::size_t>(layout.num_tokens), masked);
    for_tokens([&](const TokenColumns& in, std::int64_t, std::int64_t t) { out[std::size_t(t)] = f(in, t); });
    return out;
  }
  // The outputs of a loss or KL estimator: f(columns, token, numbers of its row) is a TokenValue.
  template <class F, class Row>
  void put(const F& f, const std::vector<Row>& rows) const {
    for_tokens([&f, &rows, loss = loss_, grad = grad_](const TokenColumns& in, std::int64_t row, std::int64_t t) {
      const TokenValue at = f(in, t, rows[std::size_t(row)]);
      loss[t] = float(at.value);
      if (grad != nullptr) grad[t] = float(at.gradient);
    });
  }

  // The numbers of a ContextLoss, in one of four ways. From the numbers of each row:
  template <class F, class Row>
  void set_numbers(const F& f, const std::vector<Row>& rows) const {
    double* const numbers = all_numbers();
    for_tokens([&f, &rows, numbers](const TokenColumns& in, std::int64_t row, std::int64_t t) {
      numbers[t] = f(in, t, rows[std::size_t(row)]);
    });
  }
  // One for each token:
  void set_numbers(std::vector<double> numbers) const { *numbers_ = std::move(numbers); }
  // Those of a choice (choice.hpp). key(columns, token, RowToken) is a std::uint64_t, cost(key) a std::int64_t.
  // `row_numbers`: one for each row, or none.
  template <class Key, class Cost>
  void set_chosen(const Key& key, const Cost& cost, const Choice& choice,
                  const std::vector<std::uint64_t>& row_numbers = {}) const {
    std::vector<std::uint64_t> keys(static_cast<std::size_t>(layout.num_tokens), kNeverChosen);
    detail::for_rows(call, layout, [&](std::int64_t row) {
      const TokenColumns in = columns;
      RowToken token{0, row_numbers.empty() ? 0 : row_numbers[std::size_t(row)]};
      for (std::int64_t t = layout.row_offsets[row]; t < layout.row_offsets[row + 1]; ++t) {
        if (in.mask[t] == 0) continue;
        keys[std::size_t(t)] = key(in, t, token);
        ++token.index;
      }
    });
    double* const numbers = all_numbers();
    std::vector<detail::ChoiceToken> tokens;
    detail::CostSum sum;
    bool has_one = false;
    std::int64_t order = 0;
    by_name([&](std::size_t, std::size_t t) {
      ++order;
      numbers[t] = keys[t] == kNeverChosen ? choice.never : choice.others;
      if (keys[t] == kNeverChosen) return;
      const std::int64_t own = cost(keys[t]);
      if (own >= 0) return tokens.push_back({keys[t], order, t});
      numbers[t] = choice.chosen;
      sum.add(own);
      has_one = true;
    });
    const std::size_t chosen = detail::choose_least(tokens, cost, choice, sum, has_one);
    for (std::size_t i = 0; i < chosen; ++i) numbers[tokens[i].token] = choice.chosen;
  }
  // f of the token + decay * the number of the row's next unmasked token:
  template <class F>
  void set_decayed_sums(const F& f, double decay) const {
    double* const numbers = all_numbers();
    detail::for_rows(call, layout, [&, numbers](std::int64_t row) {
      const TokenColumns in = columns;
      double sum = 0;
      for (std::int64_t t = layout.row_offsets[row + 1]; t-- > layout.row_offsets[row];) {
        if (in.mask[t] == 0) continue;
        sum = decay * sum + f(in, t);
        numbers[t] = sum;
      }
    });
  }

 private:
  template <class Work>
  void for_tokens(const Work& work) const {
    detail::for_rows(call, layout, [&](std::int64_t row) {
      const TokenColumns in = columns;
      for (std::int64_t t = layout.row_offsets[row]; t < layout.row_offsets[row + 1]; ++t) {
        if (in.mask[t] != 0) work(in, row, t);
      }
    });
  }

  double* all_numbers() const {
    numbers_->resize(static_cast<std::size_t>(layout.num_tokens));
    return numbers_->data();
  }

  float *loss_, *grad_;
  std::vector<double>* numbers_;
};

namespace detail {

// The call of the passes of a loss, and of a KL estimator.
struct LossPasses {
  static PassCall of(const Call& call, const mortise_layout& layout, const TokenArrays& in) {
    return {call, layout, {in.x, in.a, in.b, in.weight, in.c, in.d, nullptr, in.mask}, in.update_index};
  }
};
struct KlPasses {
  static PassCall of(const Call& call, const mortise_layout& layout, const TokenArrays& in) {
    return {call, layout, {in.x, in.b, nullptr, in.weight, nullptr, nullptr, in.a, in.mask}, 0};
  }
};

// Whether a ContextLoss is written in passes.
template <class T, class = void>
struct HasPassContext : std::false_type {};
template <class T>
struct HasPassContext<T, std::void_t<decltype(std::declval<const T&>().context(
                             std::declval<const HostPasses&>(), std::declval<const Call&>()))>> : std::true_type {};
template <class T, class = void>
struct HasPassCompute : std::false_type {};
template <class T>
struct HasPassCompute<T, std::void_t<decltype(std::declval<const T&>().compute(
                             std::declval<const HostPasses&>(), std::declval<const Call&>()))>> : std::true_type {};

}  // namespace detail
}  // namespace mortise

#endif  // MORTISE_CPP_PASSES_HPP_
