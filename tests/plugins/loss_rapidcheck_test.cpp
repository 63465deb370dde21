// Properties of every built-in policy loss and KL estimator over drawn batches: nothing depends on the order of the
// rows, on padding, or on how the batch is split into calls; expectations of the KL estimators; identities between
// losses.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "kl_call.h"
#include "property_batches.h"

namespace mortise::test {
namespace {

// The same cases in every run; RC_PARAMS of the environment goes before. A short run draws 60 cases of each property.
[[maybe_unused]] const int kConfigured =
    setenv("RC_PARAMS",  // NOLINT(concurrency-mt-unsafe): before main
           std::getenv("MORTISE_LONG") != nullptr ? "seed=7 max_success=3000 max_size=40"
                                                  : "seed=7 max_success=60 max_size=24",
           0);

using Metrics = std::map<std::string, mortise_call::Metric>;

struct LossRun {
  LossOutput out;
  Metrics metrics;
};
LossRun run(const std::string& name, const LossInput& in, Params params = {}) {
  if (name == "dro") params.emplace("dro_beta", "0.3");  // has no default
  PolicyLoss plugin(policy_loss(name), params);
  if (plugin.status != 0) RC_FAIL(name + ": " + plugin.call.error);
  LossRun result;
  result.out = compute(plugin, in);
  result.metrics = plugin.call.metrics;
  return result;
}

// A batch made from the tokens of another. place[i] is the position of token i there, or kPadding for padding.
constexpr size_t kPadding = SIZE_MAX;
struct Made {
  LossInput in;
  std::vector<size_t> place;

  // Values at padding must not matter.
  template <class T>
  void take(const std::vector<T>& from, std::vector<T>& to, T padding) const {
    for (const size_t t : place) to.push_back(t == kPadding ? padding : from[t]);
  }
  void fill(const LossInput& from) {
    take(from.mask, in.mask, uint8_t(0));
    take(from.log_prob, in.log_prob, INFINITY);
    take(from.old_log_prob, in.old_log_prob, NAN);
    take(from.advantages, in.advantages, -INFINITY);
    take(from.weight, in.weight, NAN);
    take(from.rollout_log_prob, in.rollout_log_prob, NAN);
    take(from.rollout_is_weights, in.rollout_is_weights, NAN);
  }
};

// The rows `order`, in that order, with masked tokens between the others as `padding` says.
Made made(const LossInput& from, const std::vector<size_t>& order, Numbers* padding = nullptr) {
  Made out;
  const auto pad = [&] {
    while (padding != nullptr && padding->chance(0.3)) out.place.push_back(kPadding);
  };
  for (const size_t row : order) {
    pad();
    for (auto t = size_t(from.row_offsets[row]); t < size_t(from.row_offsets[row + 1]); ++t) {
      out.place.push_back(t);
      pad();
    }
    out.in.row_offsets.push_back(int64_t(out.place.size()));
    out.in.row_id.push_back(from.row_id[row]);
    out.in.group_index.push_back(from.group_index[row]);
  }
  out.fill(from);
  return out;
}

std::vector<size_t> all_rows(const LossInput& in) {
  std::vector<size_t> rows(size_t(in.num_rows()));
  std::iota(rows.begin(), rows.end(), size_t(0));
  return rows;
}

void expect_same_tokens(const LossOutput& plain, const LossOutput& other, const std::vector<size_t>& place,
                        const std::string& name) {
  for (size_t i = 0; i < place.size(); ++i) {
    if (place[i] == kPadding) {
      expect_near(other.loss[i], 0, 0, name + ", loss of padding", i);
      expect_near(other.grad[i], 0, 0, name + ", gradient of padding", i);
    } else {
      expect_near(other.loss[i], plain.loss[place[i]], 1e-5, name + ", loss", place[i]);
      expect_near(other.grad[i], plain.grad[place[i]], 1e-5, name + ", gradient", place[i]);
    }
  }
}

void expect_same_metrics(const Metrics& plain, const Metrics& other, const std::string& name) {
  RC_ASSERT(plain.size() == other.size());
  for (const auto& [metric, m] : plain) {
    const mortise_call::Metric& o = other.at(metric);
    const bool mean = m.reduction == MORTISE_REDUCE_MEAN;
    const double scale = mean ? 1e-9 * m.weight : 0;  // means around 0 are sums of both signs
    if (std::abs(o.sum - m.sum) > scale) expect_near(o.sum, m.sum, 1e-6, name + ", metric " + metric, 0);
    expect_near(o.weight, m.weight, 1e-12, name + ", weight of metric " + metric, 0);
  }
}

// The page of algorithms uses these texts. Each names its formula and its source.
TEST(Algorithms, NameFormulaAndSource) {
  for (const std::string kind : {"policy_loss", "kl_estimator", "advantage_estimator"}) {
    const mortise_pack* pack = load_pack(pack_path(kind));
    for (uint32_t i = 0; i < pack->num_plugins; ++i) {
      const std::string doc = pack->plugins[i]->doc == nullptr ? "" : pack->plugins[i]->doc;
      const std::string texts = std::string(pack->plugins[i]->summary) + " " + doc;
      const auto has = [&](const char* text) { return texts.find(text) != std::string::npos; };
      EXPECT_TRUE(has("arXiv:") || has("Schulman") || has("verl") || has("TRL"))
          << kind << " " << pack->plugins[i]->name;
      EXPECT_TRUE(has("=") || has("log_prob")) << kind << " " << pack->plugins[i]->name;
      const std::string summary = pack->plugins[i]->summary;  // begins a sentence on the page
      EXPECT_EQ(summary.find("exp("), std::string::npos) << kind << " " << pack->plugins[i]->name;
    }
  }
}

RC_GTEST_PROP(PolicyLosses, DoNotSeeTheOrderOfRows, (const Rows& rows, uint32_t seed)) {
  const LossInput in = loss_batch(rows);
  const Made mixed = made(in, Numbers(seed).order(rows.size()));
  for (const std::string& name : names_of("policy_loss")) {
    const LossRun plain = run(name, in), other = run(name, mixed.in);
    expect_same_tokens(plain.out, other.out, mixed.place, name);
    expect_same_metrics(plain.metrics, other.metrics, name);
  }
}

RC_GTEST_PROP(PolicyLosses, DoNotSeePadding, (const Rows& rows, uint32_t seed)) {
  const LossInput in = loss_batch(rows);
  Numbers numbers(seed);
  const Made wide = made(in, all_rows(in), &numbers);
  for (const std::string& name : names_of("policy_loss")) {
    const LossRun plain = run(name, in), other = run(name, wide.in);
    expect_same_tokens(plain.out, other.out, wide.place, name);
    expect_same_metrics(plain.metrics, other.metrics, name);
  }
}

// Micro-batches: of any rows, or of whole prompts where the loss looks at them. Losses of the update get it whole.
RC_GTEST_PROP(PolicyLosses, DoNotSeeTheSplit, (const Rows& rows, uint32_t seed)) {
  const LossInput in = loss_batch(rows);
  for (const std::string& name : names_of("policy_loss")) {
    const int32_t coupling = policy_loss(name)->coupling;
    if (coupling == MORTISE_COUPLING_UPDATE) continue;
    const LossRun whole = run(name, in);
    double total = 0;
    Metrics joined;
    for (uint64_t piece = 0; piece < 3; ++piece) {
      std::vector<size_t> mine;
      for (const size_t row : all_rows(in)) {
        const auto key = uint64_t(coupling == MORTISE_COUPLING_GROUP ? in.group_index[row] : in.row_id[row]);
        if (Numbers(key + seed).next() % 3 == piece) mine.push_back(row);
      }
      const Made part = made(in, mine);
      const LossRun got = run(name, part.in);
      expect_same_tokens(whole.out, got.out, part.place, name);
      total += got.out.total;
      for (const auto& [metric, m] : got.metrics) joined[metric].sum += m.sum, joined[metric].weight += m.weight;
    }
    if (std::abs(total - whole.out.total) > 1e-9) expect_near(total, whole.out.total, 1e-6, name + ", the sum", 0);
    for (const auto& [metric, m] : whole.metrics) {
      if (m.reduction != MORTISE_REDUCE_MEAN) continue;
      expect_near(joined[metric].weight, m.weight, 1e-12, name + ", weight of metric " + metric, 0);
      if (std::abs(joined[metric].sum - m.sum) > 1e-9 * m.weight)
        expect_near(joined[metric].sum, m.sum, 1e-6, name + ", metric " + metric, 0);
    }
  }
}

RC_GTEST_PROP(KlEstimators, SeeEachTokenAlone, (const std::vector<uint32_t>& tokens, uint32_t seed)) {
  Numbers numbers(seed);
  std::vector<float> lp, ref, old, mixed_lp, mixed_ref, mixed_old;
  std::vector<uint8_t> mask, mixed_mask;
  for (const uint32_t token : tokens) {
    Numbers x(token);
    mask.push_back(x.chance(0.85) ? 1 : 0);
    lp.push_back(float(x.uniform(-4, -0.05)));
    ref.push_back(lp.back() + float(x.uniform(-1, 1)));
    old.push_back(lp.back() + float(x.uniform(-0.5, 0.5)));
  }
  std::vector<size_t> place;  // in another order, padding between
  for (const size_t t : numbers.order(tokens.size())) {
    while (numbers.chance(0.3)) place.push_back(kPadding);
    place.push_back(t);
  }
  for (const size_t t : place) {
    const bool real = t != kPadding;
    mixed_mask.push_back(real ? mask[t] : 0);
    mixed_lp.push_back(real ? lp[t] : NAN), mixed_ref.push_back(real ? ref[t] : INFINITY);
    mixed_old.push_back(real ? old[t] : -INFINITY);
  }
  for (const std::string& name : names_of("kl_estimator")) {
    Kl plugin(kl_estimator(name));
    if (kl_estimator(name)->coupling != MORTISE_COUPLING_TOKEN) continue;  // sees its row
    const LossOutput plain = compute_kl(plugin, lp, ref, 1, 0.5F, mask, old);
    expect_same_tokens(plain, compute_kl(plugin, mixed_lp, mixed_ref, 1, 0.5F, mixed_mask, mixed_old), place, name);
    for (size_t t = 0; t < lp.size(); ++t) {  // each in its own call
      const LossOutput one = compute_kl(plugin, {lp[t]}, {ref[t]}, 1, 0.5F, {mask[t]}, {old[t]});
      expect_near(one.loss[0], plain.loss[t], 0, name + " alone, value", t);
      expect_near(one.grad[0], plain.grad[t], 0, name + " alone, gradient", t);
    }
  }
}

// Three distributions over the same few tokens, as log-probs.
struct Policies {
  std::vector<float> policy, reference, sampler;
  double kl = 0;
  std::vector<double> slope;  // d KL(policy || reference) / d logit of the policy

  explicit Policies(const std::vector<uint32_t>& numbers) {
    for (std::vector<float>* p : {&policy, &reference, &sampler}) {
      double sum = 0;
      std::vector<double> mass;
      for (const uint32_t number : numbers) {
        Numbers x(number * 4ULL + uint64_t(p == &policy ? 0 : p == &reference ? 1 : 2));
        mass.push_back(x.uniform(0.05, 1));
        sum += mass.back();
      }
      for (const double m : mass) p->push_back(float(std::log(m / sum)));
    }
    for (size_t a = 0; a < policy.size(); ++a) kl += probability(policy, a) * distance(a);
    for (size_t a = 0; a < policy.size(); ++a) slope.push_back(probability(policy, a) * (distance(a) - kl));
  }
  static double probability(const std::vector<float>& p, size_t a) { return std::exp(double(p[a])); }
  double distance(size_t a) const { return double(policy[a]) - double(reference[a]); }
};

struct Expectation {
  double value = 0;
  std::vector<double> slope;  // gradient of the estimate as a loss term, with respect to the policy's logits
};
Expectation expectation(const std::string& name, const Policies& p, const std::vector<float>& sampler) {
  Kl plugin(kl_estimator(name), {{"max_log_ratio", "none"}, {"max_kl", "none"}});
  const LossOutput out = compute_kl(plugin, p.policy, p.reference, 1, 1, {}, sampler);
  Expectation e;
  e.slope.assign(p.policy.size(), 0);
  for (size_t a = 0; a < p.policy.size(); ++a) {
    const double q = Policies::probability(sampler, a);
    e.value += q * double(out.loss[a]);
    for (size_t b = 0; b < p.policy.size(); ++b)  // d log policy(a) / d logit(b)
      e.slope[b] += q * double(out.grad[a]) * ((a == b ? 1.0 : 0.0) - Policies::probability(p.policy, b));
  }
  return e;
}

// Sums over all tokens instead of samples: k1 and k3 have no bias, and k3_ratio has none for any sampler. As loss terms
// k2 and k3_ratio have the gradient of the KL, and k1 has none.
RC_GTEST_PROP(KlEstimators, Expectations, (const std::vector<uint32_t>& numbers)) {
  RC_PRE(!numbers.empty());
  const Policies p(numbers);
  const auto near = [&](double a, double b, const char* what) {
    if (std::abs(a - b) > 1e-5) expect_near(a, b, 0, what, 0);
  };
  for (const char* name : {"k1", "kl", "k3", "low_var_kl", "k3_ratio"})
    near(expectation(name, p, p.policy).value, p.kl, name);
  near(expectation("k3_ratio", p, p.sampler).value, p.kl, "k3_ratio of another sampler");
  double square = 0;
  for (size_t a = 0; a < numbers.size(); ++a)
    square += Policies::probability(p.policy, a) * p.distance(a) * p.distance(a) / 2;
  for (const char* name : {"k2", "mse"}) near(expectation(name, p, p.policy).value, square, name);
  const Expectation k1 = expectation("k1", p, p.policy), k2 = expectation("k2", p, p.policy);
  const Expectation off = expectation("k3_ratio", p, p.sampler);
  for (size_t b = 0; b < numbers.size(); ++b) {
    near(k1.slope[b], 0, "gradient of k1");
    near(k2.slope[b], p.slope[b], "gradient of k2");
    near(off.slope[b], p.slope[b], "gradient of k3_ratio");
  }
  for (const char* name : {"k2", "k3", "abs", "k3_ratio"}) {
    Kl plugin(kl_estimator(name));
    for (const float x : compute_kl(plugin, p.policy, p.reference, 1, 1, {}, p.sampler).loss) RC_ASSERT(x >= 0);
  }
}

std::string text(double x) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.17g", x);
  return buffer;
}
void expect_same(const LossRun& a, const LossRun& b, const std::string& what) {
  for (size_t t = 0; t < a.out.loss.size(); ++t) {
    expect_near(a.out.loss[t], b.out.loss[t], 1e-5, what + ", loss", t);
    expect_near(a.out.grad[t], b.out.grad[t], 1e-5, what + ", gradient", t);
  }
}

// For rows of one token and any clip, GSPO and its variants equal PPO. So does GMPO with the logarithms of the edges.
RC_GTEST_PROP(Identities, SequenceLossesAtLengthOneArePpo, (const std::vector<uint32_t>& tokens, uint32_t clip)) {
  Rows rows;
  for (const uint32_t token : tokens) rows.push_back({uint16_t(token), {token}});
  LossInput in = loss_batch(rows);
  in.rollout_is_weights.clear();
  for (size_t t = 0; t < in.mask.size(); ++t) {  // within the caps of the log ratios
    if (std::abs(in.log_prob[t] - in.old_log_prob[t]) > 5) in.log_prob[t] = in.old_log_prob[t];
  }
  Numbers numbers(clip);
  const double low = numbers.uniform(0.01, 0.9), high = numbers.uniform(0.01, 2);
  const Params edges = {{"clip_ratio_low", text(low)}, {"clip_ratio_high", text(high)}};
  Params ppo_params = edges;
  ppo_params["clip_ratio_c"] = "0";
  const LossRun ppo = run("vanilla", in, ppo_params);
  for (const char* name : {"gspo", "gspo_token", "luspo"}) expect_same(run(name, in, edges), ppo, name);
  Params row_params = edges;
  row_params["gradient"] = "row";
  expect_same(run("gspo", in, row_params), ppo, "gspo, gradient of the row");
  const Params logs = {{"clip_ratio_low", text(-std::log(1 - low))}, {"clip_ratio_high", text(std::log(1 + high))}};
  expect_same(run("geo_mean", in, logs), ppo, "geo_mean");
}

// d(-A r)/d log_prob = -A r. Reinforce's gradient is -A: on-policy they are the same.
RC_GTEST_PROP(Identities, PpoWithAnInfiniteClipIsReinforce, (const Rows& rows)) {
  const Params no_clip = {{"clip_ratio", "1e300"}, {"clip_ratio_low", "1"}, {"clip_ratio_c", "0"}};
  LossInput in = loss_batch(rows);
  const LossRun reinforce = run("reinforce", in);
  const LossRun ppo = run("vanilla", in, no_clip), cispo = run("cispo", in, {{"cap", "1e300"}});
  for (size_t t = 0; t < in.mask.size(); ++t) {
    const double distance = double(in.log_prob[t]) - double(in.old_log_prob[t]);
    if (std::abs(distance) > 20) continue;  // the clamp of the log ratio
    expect_near(ppo.out.grad[t], std::exp(distance) * double(reinforce.out.grad[t]), 1e-5, "vanilla", t);
    expect_near(cispo.out.grad[t], ppo.out.grad[t], 1e-5, "cispo", t);
  }
  in.old_log_prob = in.log_prob;
  const LossRun on_policy = run("vanilla", in, no_clip);
  for (size_t t = 0; t < in.mask.size(); ++t)
    expect_near(on_policy.out.grad[t], reinforce.out.grad[t], 0, "vanilla on-policy", t);
}

}  // namespace
}  // namespace mortise::test
