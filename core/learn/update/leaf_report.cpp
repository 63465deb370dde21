// Writes reports of micro-batches as bytes, and reads those of the other ranks.
#include "learn/update/leaf_report.h"

#include "foundation/batch/float_bytes.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/metric_bytes.h"

namespace mortise {

namespace {

std::string encode_leaf(const LeafReport& leaf) {
  const auto& [sums, metrics, skipped, has_gradient, kept, router] = leaf;
  const auto& [loss, pg_loss, kl_loss, kl, entropy, entropy_loss, num_tokens, bonus_entropy, num_bonus_tokens] = sums;
  Encoder out;
  for (const double number : {loss, pg_loss, kl_loss, kl, entropy, entropy_loss, bonus_entropy}) out.f64(number);
  out.i64(num_tokens).i64(num_bonus_tokens).i64(skipped ? 1 : 0).i64(has_gradient ? 1 : 0);
  out.text(encode_metrics(metrics)).text(float_bytes(kept));
  out.u64(router.size());
  for (const double number : router) out.f64(number);
  return out.bytes();
}

Result<LeafReport> decode_leaf(std::string_view bytes) {
  Decoder in(bytes);
  LeafReport leaf;
  ObjectiveSums& sums = leaf.sums;
  for (double* number :
       {&sums.loss, &sums.pg_loss, &sums.kl_loss, &sums.kl, &sums.entropy, &sums.entropy_loss, &sums.bonus_entropy})
    *number = in.f64();
  sums.num_tokens = in.i64();
  sums.num_bonus_tokens = in.i64();
  leaf.skipped = in.i64() != 0;
  leaf.has_gradient = in.i64() != 0;
  leaf.metrics = TRY(decode_metrics(in.text()));
  leaf.kept = floats_of_bytes(in.text());
  leaf.router.resize(in.count(sizeof(double)));
  for (double& number : leaf.router) number = in.f64();
  if (!in.done()) return Error{ErrorKind::kInternal, "the report of another rank's micro-batch cannot be read", "", ""};
  return leaf;
}

}  // namespace

Result<> exchange_leaves(const RankShare& share, std::vector<LeafReport>& leaves) {
  std::vector<std::string> parts(leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (share.is_told(i)) parts[i] = encode_leaf(leaves[i]);
  }
  TRY(share.exchange(parts, "reports of micro-batches"));
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!share.is_told(i)) leaves[i] = TRY(decode_leaf(parts[i]));
  }
  return {};
}

}  // namespace mortise
