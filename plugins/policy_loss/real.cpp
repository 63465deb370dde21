// real: rewards as labels (arXiv:2602.05630), policy optimization as classification within the group.
//
//   s = mean over the row of log_prob - old_log_prob;  rows with A > 0 are positives, the others negatives;
//   L of a group = log(1 + sum over negatives of e^(s / tau)) + log(1 + sum over positives of e^(-s / tau)),
//   0 for a group that lacks one of the two.
// All tokens of a group have its loss. The default aggregation is prompt-mean, which is the mean over groups. tau is
// 0.5 as in ms-swift. Only the sign of the advantage counts: use it with advantages that are not divided by the
// deviation, or with the labels of a reward. Trap: rows without unmasked tokens are not members of their group;
// ms-swift counts them as negatives with s = 0.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace {

struct RewardsAsLabels : mortise::PassLoss {
  static constexpr const char* summary = "classification of good and bad rows of a group by their log ratio (REAL)";
  static constexpr const char* doc =
      "s = mean of log_prob - old_log_prob over the row; L of a group = log(1 + sum_(A<=0) e^(s/tau)) + "
      "log(1 + sum_(A>0) e^(-s/tau)). arXiv:2602.05630; aggregate with prompt-mean";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr bool accepts_cuda = true;
  static constexpr std::int32_t coupling = MORTISE_COUPLING_GROUP;

  double tau = param("real_tau", 0.5, "temperature tau").above(0);
  std::string loss_agg_mode = mortise::own_aggregation(param("loss_agg_mode", "prompt-mean", mortise::kAggregationDoc));

  struct Row {
    double tokens = 0, log_ratio = 0, advantage = 0, weight = 0;
    bool positive() const { return advantage > 0; }
  };
  struct Sum {
    using Sums = Row;
    MORTISE_HD void operator()(const mortise::TokenColumns& in, std::int64_t t, Row& sums) const {
      sums.tokens += 1;
      sums.log_ratio += in.log_ratio(t);
      sums.advantage += double(in.advantages[t]);
      sums.weight += double(in.weight[t]);
    }
  };
  // The loss of the row's group, and its gradient at each of the row's tokens.
  struct Value {
    MORTISE_HD mortise::TokenValue operator()(const mortise::TokenColumns& in, std::int64_t t,
                                              const mortise::TokenValue& row) const {
      return {row.value, in.unless_weightless(t, row.gradient)};
    }
  };
  // log(1 + sum of e^(sign s / tau)) over the members of one label.
  struct Label {
    double sign, greatest = 0, sum = 0;
    double loss() const { return greatest + std::log(sum); }
    // d loss / d s of a member; t is tau
    double slope(double s, double t) const { return sign / t * std::exp(sign * s / t - greatest) / sum; }
  };
  Label label_of(const std::vector<Row>& rows, const std::int64_t* begin, const std::int64_t* end,
                 bool positive) const {
    Label label{positive ? -1.0 : 1.0};
    const auto each = [&](const auto& work) {
      for (const std::int64_t* i = begin; i != end; ++i) {
        const Row& row = rows[std::size_t(*i)];
        if (row.tokens > 0 && row.positive() == positive) work(label.sign * row.log_ratio / row.tokens / tau);
      }
    };
    each([&](double x) { label.greatest = std::max(label.greatest, x); });
    label.sum = std::exp(-label.greatest);
    each([&](double x) { label.sum += std::exp(x - label.greatest); });
    return label;
  }

  // Sets the values of the group's rows. True if it has both labels.
  bool set_group(const std::vector<Row>& rows, const std::int64_t* begin, const std::int64_t* end,
                 std::vector<mortise::TokenValue>& values) const {
    const auto has = [&](bool positive) {
      return std::any_of(begin, end, [&](std::int64_t i) {
        const Row& row = rows[std::size_t(i)];
        return row.tokens > 0 && row.positive() == positive;
      });
    };
    const bool both = has(true) && has(false);
    const Label labels[] = {label_of(rows, begin, end, false), label_of(rows, begin, end, true)};
    // A sum of log ratios that is NaN must show, whatever its label.
    const double bad = std::accumulate(begin, end, 0.0, [&](double x, std::int64_t i) {
      return std::isnan(rows[std::size_t(i)].log_ratio) ? rows[std::size_t(i)].log_ratio : x;
    });
    const double loss = both ? labels[0].loss() + labels[1].loss() + bad : bad;
    const double weight =
        std::accumulate(begin, end, 0.0, [&](double x, std::int64_t i) { return x + rows[std::size_t(i)].weight; });
    for (const std::int64_t* i = begin; i != end; ++i) {
      const Row& row = rows[std::size_t(*i)];
      if (row.tokens == 0) continue;
      const double slope = both ? labels[row.positive()].slope(row.log_ratio / row.tokens, tau) : 0.0;
      values[std::size_t(*i)] = {loss, weight * slope / row.tokens};
    }
    return both;
  }

  template <class Passes>
  void compute(const Passes& passes, const mortise::Call& call) const {
    const std::vector<Row> rows = passes.row_sums(Sum{});
    std::vector<mortise::TokenValue> values(rows.size());
    std::vector<std::int64_t> order(rows.size());
    std::iota(order.begin(), order.end(), 0);
    const auto group = [&](std::int64_t row) { return passes.layout.group_index[row]; };
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return group(a) < group(b); });
    double groups = 0, complete = 0, tokens = 0, log_ratio = 0;
    const std::int64_t *begin = order.data(), *const last = begin + order.size();
    while (begin != last) {
      const std::int64_t* end = begin;
      while (end != last && group(*end) == group(*begin)) ++end;
      groups += 1;
      complete += set_group(rows, begin, end, values) ? 1.0 : 0.0;
      begin = end;
    }
    passes.put(Value{}, values);
    for (const Row& row : rows) tokens += row.tokens, log_ratio += row.log_ratio;
    if (groups > 0) call.metric("real/complete_groups", complete, groups);
    if (tokens > 0) call.metric("actor/ppo_kl", -log_ratio, tokens);
  }
};

}  // namespace

MORTISE_PASS_LOSS("real", RewardsAsLabels)
