// Policy losses in float64, straight from their papers' formulas: the second opinion on the plugins.
//
// Rows hold their unmasked tokens alone. `lp` is what the gradient is taken in; `held` is the same log-prob where a
// formula says stop-gradient. So the gradient is the difference quotient of sum(weight * loss) in lp with held kept
// where it is.
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
