// gpg: Group Policy Gradient (arXiv:2504.02546), the plain policy gradient.
//
//   L = -A log_prob. No ratio, no clip, no old policy.
// The advantage estimator `gpg` makes it GPG. It is right only for one update per batch. With more updates the samples
// are off-policy, and nothing corrects for that.
#include <mortise/cpp/mortise.hpp>

namespace {

struct Gpg : mortise::TokenLoss {
  static constexpr const char* summary = "plain policy gradient, for the advantages of gpg";
  static constexpr const char* doc = "L = -A log_prob. arXiv:2504.02546";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr bool accepts_cuda = true;

  template <class Real, class Number>
  MORTISE_HD Real token(Real logp, Number, Number adv) const {
    return -adv * logp;
  }
};

}  // namespace

MORTISE_TOKEN_LOSS("gpg", Gpg)
