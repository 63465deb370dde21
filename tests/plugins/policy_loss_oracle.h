// Policy losses in float64, written from their papers' formulas, as an independent reference for the plugins.
//
// Rows have only their unmasked tokens. The gradient is taken with respect to `lp`. `held` is the same log-prob at
// places where a formula says stop-gradient. The gradient is therefore the difference quotient of sum(weight * loss) in
// lp with fixed held.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mortise::test {

struct OracleRow {
  std::vector<double> lp, held, old, rollout, adv, rollout_weight, weight;
  int64_t group = 0;

  size_t size() const { return lp.size(); }
};
using OracleBatch = std::vector<OracleRow>;
using TokenLosses = std::vector<std::vector<double>>;  // [row][token]
using OracleParams = std::map<std::string, double>;

// The losses of all tokens; parameters that are left out have the plugin's documented defaults.
using Oracle = std::function<TokenLosses(const OracleBatch&, OracleParams)>;

const std::map<std::string, Oracle>& policy_loss_oracles();

// d sum(weight * loss) / d lp, by central differences.
TokenLosses oracle_gradient(const Oracle& oracle, const OracleBatch& batch, const OracleParams& params);

}  // namespace mortise::test
