// gpg: Group Policy Gradient (arXiv:2504.02546), the policy gradient alone.
//
//   L = -A log_prob. No ratio, no clip, no old policy; what makes it GPG is the advantage estimator `gpg`.
// Right for one update per batch only: with more, the samples are off-policy and nothing corrects for it.
#include <mortise/cpp/mortise.hpp>

namespace {

struct Gpg : mortise::TokenLoss {
  static constexpr const char* summary = "plain policy gradient, for the advantages of gpg";
  static constexpr const char* doc = "L = -A log_prob. arXiv:2504.02546";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  template <class Real, class Number>
  Real token(Real logp, Number, Number adv) const {
    return -adv * logp;
  }
};

}  // namespace

MORTISE_TOKEN_LOSS("gpg", Gpg)
