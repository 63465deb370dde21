// bnpo: the centred reward over a Beta density that follows the policy (Beta Normalization Policy Optimization,
// arXiv:2506.02864). For rewards between reward_min and reward_max; r is the reward mapped to 0 .. 1.
//
//   A = (r - p) / f(p; alpha, beta),  p = mean of the group, f the density of Beta(alpha, beta), 1/f at most max_weight
//   alpha = 1 + a/3, beta = 1 + b/3, neither below 1; (a, b): the Beta distribution of the groups' means, by moments
//   over the last `window` steps: nu = E(1 - E)/Var - 1, a = nu E, b = nu (1 - E), Var with n - 1.
// alpha = beta = 1 is REINFORCE with baseline; 3/2 is GRPO up to a constant (0/1 rewards). Give both to hold them
// fixed. Fewer than two groups, or equal means, leave nothing to fit: 1 and 1. The published code fits the current step
// (window = 1). A prompt with one reward gets 0 and is not fitted. `decompose`: each reward function for itself, then
// the mean by weight (the paper's advantage decomposition).
// method = posterior, the simpler variant: A = (r - m) / sqrt(m (1 - m) + delta), m the mean of a Beta posterior of all
// rewards so far, this step's included; `decay` forgets, 1 does not.
// Traps: advantages grow where f is small, near p = 0 and 1; rewards outside the range are cut, warned of once and
// counted (bnpo/clipped_rewards). State: the last steps' moments and the posterior.
#include <mortise/cpp/advantage.hpp>
#include <mortise/cpp/state.hpp>

#include "../shared/groups.h"
#include "bnpo_state.h"

namespace {

using mortise::BnpoComponent;

struct Bnpo : mortise::AdvantageEstimator {
  static constexpr const char* summary = "centred reward over a Beta density fitted to the groups' means (BNPO)";
  static constexpr const char* doc =
      "A = (r - p_g) / f(p_g; 1 + a/3, 1 + b/3), (a, b) by moments of the groups' means; or (r - m) / sqrt(m(1-m) + "
      "delta), m of a Beta posterior. arXiv:2506.02864";
  static constexpr std::uint32_t flags = MORTISE_FLAG_COMPARES_GROUP;

  std::string method =
      param("method", "density", "'density': the paper's; 'posterior': a running mean and its variance")
          .choices({"density", "posterior"});
  double alpha = param("alpha", mortise::none, "density: alpha held fixed; not set: fitted").range(1, 1e6);
  double beta = param("beta", mortise::none, "density: beta held fixed; not set: fitted").range(1, 1e6);
  std::int64_t window = param("window", 1, "density: steps whose group means are fitted").range(1, 1e6);
  double max_weight = param("max_weight", 1e6, "density: bound of 1/f").at_least(0);
  double prior_alpha = param("prior_alpha", 1.0, "posterior: successes before the first step").at_least(1e-9);
  double prior_beta = param("prior_beta", 1.0, "posterior: failures before the first step").at_least(1e-9);
  double decay = param("decay", 1.0, "posterior: share of the earlier steps' counts kept at each step").range(0, 1);
  double delta = param("delta", 1e-4, "posterior: added to m(1 - m)").at_least(1e-12);
  double reward_min = param("reward_min", 0.0, "reward that counts as failure, 0");
  double reward_max = param("reward_max", 1.0, "reward that counts as success, 1");
  bool decompose = param("decompose", false, "compute each reward function separately, then their weighted mean");

  void setup(mortise::Call) override {
    if (!(reward_min < reward_max) || !std::isfinite(reward_max - reward_min))
      mortise::fail(MORTISE_INVALID_ARGUMENT,
                    "reward_min must be below reward_max, both finite; set them to the rewards' range");
    if (mortise::is_set(alpha) != mortise::is_set(beta))
      mortise::fail(MORTISE_INVALID_ARGUMENT, "alpha and beta are held fixed together; set both or neither");
    if (mortise::is_set(alpha) && method == "posterior")
      mortise::fail(MORTISE_INVALID_ARGUMENT,
                    "alpha and beta are the density's, and method is posterior; set prior_alpha and prior_beta, or "
                    "method = density");
  }

  void compute(mortise::AdvantageBatch& batch, mortise::Call call) override {
    const std::vector<mortise::ScoredGroup> groups = batch.groups();
    const bool by_function = decompose && batch.num_functions() > 0;
    const std::int64_t num = by_function ? batch.num_functions() : 1;
    if (!components_.empty() && std::int64_t(components_.size()) != num) {
      call.log(MORTISE_LOG_WARN, "the number of reward functions has changed: bnpo starts its statistics again");
      components_.clear();
    }
    components_.resize(std::size_t(num));
    std::vector<double> advantages(std::size_t(batch.num_rows()));
    double weights = 0;
    cut_ = seen_ = 0;
    for (std::int64_t k = 0; k < num; ++k) {
      const double weight = by_function ? batch.reward_weight(k) : 1.0;
      std::vector<mortise::ScoredGroup> units;
      for (const mortise::ScoredGroup& g : groups) units.push_back(unit_rewards(batch, g, by_function ? k : -1));
      add(units, weight, components_[std::size_t(k)], by_function ? "_" + std::to_string(k) : "", advantages, call);
      weights += weight;
    }
    for (const mortise::ScoredGroup& g : groups) {
      for (const std::int64_t row : g.rows)
        batch.broadcast(row, mortise::scaled(advantages[std::size_t(row)], weights));
    }
    if (seen_ > 0) call.metric("bnpo/clipped_rewards", double(cut_), double(seen_));
    if (cut_ > 0 && !warned_) {
      warned_ = true;
      call.log(MORTISE_LOG_WARN, "bnpo cut " + std::to_string(cut_) + " of " + std::to_string(seen_) +
                                     " rewards to reward_min .. reward_max; set them to the range of the rewards");
    }
  }

  const void* extension(const char* id) override { return mortise::state_extension<Bnpo>(id); }
  std::string save_state() const { return mortise::save_bnpo(components_); }
  void load_state(std::string_view bytes) { components_ = mortise::load_bnpo(bytes); }

 private:
  // The group's rewards mapped to 0 .. 1; k: the reward function, -1: the outcome.
  mortise::ScoredGroup unit_rewards(const mortise::AdvantageBatch& batch, const mortise::ScoredGroup& g,
                                    std::int64_t k) {
    mortise::ScoredGroup out;
    out.num_rows = g.num_rows;
    for (std::size_t i = 0; i < g.rows.size(); ++i) {
      const double reward = k < 0 ? g.rewards[i] : batch.reward(g.rows[i], k);
      if (std::isnan(reward)) continue;
      const double unit = (reward - reward_min) / (reward_max - reward_min);
      ++seen_;
      cut_ += unit < 0 || unit > 1;
      out.rows.push_back(g.rows[i]);
      out.rewards.push_back(std::min(1.0, std::max(0.0, unit)));
    }
    return out;
  }

  void add(const std::vector<mortise::ScoredGroup>& groups, double weight, BnpoComponent& state,
           const std::string& suffix, std::vector<double>& advantages, mortise::Call call) const {
    if (method == "posterior") return add_posterior(groups, weight, state, suffix, advantages, call);
    std::vector<double> means;
    for (const mortise::ScoredGroup& g : groups) {
      if (g.rewards.size() > 1) means.push_back(mortise::mean_of(mortise::view(g.rewards)));
    }
    state.push(mortise::view(means), std::size_t(window));
    double a = alpha, b = beta;
    if (!mortise::is_set(alpha)) state.fit(a, b);
    call.metric("bnpo/alpha" + suffix, a, 1);
    call.metric("bnpo/beta" + suffix, b, 1);
    for (const mortise::ScoredGroup& g : groups) {
      if (g.rewards.size() < 2) continue;
      const double p = mortise::mean_of(mortise::view(g.rewards));
      const double scale = std::min(max_weight, 1 / mortise::beta_density(p, a, b));
      for (std::size_t i = 0; i < g.rows.size(); ++i) {
        const double centred = g.rewards[i] - p;
        advantages[std::size_t(g.rows[i])] += centred == 0 ? 0.0 : weight * scale * centred;
      }
    }
  }

  void add_posterior(const std::vector<mortise::ScoredGroup>& groups, double weight, BnpoComponent& state,
                     const std::string& suffix, std::vector<double>& advantages, mortise::Call call) const {
    state.successes *= decay;
    state.failures *= decay;
    for (const double r : mortise::all_rewards(groups)) {
      state.successes += r;
      state.failures += 1 - r;
    }
    const double successes = prior_alpha + state.successes;
    const double mean = successes / (successes + prior_beta + state.failures);
    call.metric("bnpo/posterior_mean" + suffix, mean, 1);
    const double scale = weight / std::sqrt(mean * (1 - mean) + delta);
    for (const mortise::ScoredGroup& g : groups) {
      for (std::size_t i = 0; i < g.rows.size(); ++i)
        advantages[std::size_t(g.rows[i])] += scale * (g.rewards[i] - mean);
    }
  }

  std::vector<BnpoComponent> components_;  // one, or one for each reward function
  std::int64_t cut_ = 0, seen_ = 0;        // rewards of the call
  bool warned_ = false;
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("bnpo", Bnpo)
