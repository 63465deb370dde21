// See shared_tokens.h.
#include "generate/sample/shared_tokens.h"

#include <ATen/ops/zeros.h>

#include <cstdint>

namespace mortise {

namespace {

// A token is so many doubles, which hold ids and float32 numbers exactly.
constexpr int64_t kNumbers = 3;

}  // namespace

void gather_tokens(TensorRanks& ranks, std::span<SampledToken> tokens) {
  const size_t most = (tokens.size() + static_cast<size_t>(ranks.size()) - 1) / static_cast<size_t>(ranks.size());
  const int64_t size = static_cast<int64_t>(most) * kNumbers;
  const at::Tensor own = at::zeros({size}, at::kDouble), all = at::zeros({ranks.size() * size}, at::kDouble);
  const TokenShare mine = token_share(tokens.size(), &ranks);
  auto* to = own.data_ptr<double>();
  for (const SampledToken& token : tokens.subspan(mine.begin, mine.size())) {
    *to++ = static_cast<double>(token.id);
    *to++ = token.log_prob;
    *to++ = token.filtered_log_prob;
  }
  ranks.gather(own, all);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const TokenShare share = token_share(tokens.size(), rank, ranks.size());
    const double* from = all.const_data_ptr<double>() + rank * size;
    for (SampledToken& token : tokens.subspan(share.begin, share.size())) {
      token.id = static_cast<int64_t>(*from++);
      token.log_prob = static_cast<float>(*from++);
      token.filtered_log_prob = static_cast<float>(*from++);
    }
  }
}

}  // namespace mortise
