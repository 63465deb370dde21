// See kept_pass.h.
#include "learn/update/kept_pass.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "foundation/batch/token_history.h"
#include "learn/update/packed_forward.h"
#include "model/head/kept_head.h"
#include "plugin/worker/channel.h"

namespace mortise {

namespace {

std::string bytes_of_kept(const KeptTokens& kept, int64_t num_missing) {
  const auto& [offsets, ids, is_seen, shift, repetition_penalty] = kept;
  Encoder out;
  out.i64(num_missing).f64(repetition_penalty).u64(offsets.size());
  for (const int64_t offset : offsets) out.i64(offset);
  const auto raw = [&](const auto& values) {
    out.text({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])});
  };
  raw(ids);
  raw(is_seen);
  raw(shift);
  return out.bytes();
}

template <class T>
std::vector<T> values_of_bytes(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::copy_n(bytes.data(), values.size() * sizeof(T), reinterpret_cast<char*>(values.data()));
  return values;
}

Result<KeptTokens> kept_of_bytes(const std::string& bytes, int64_t* num_missing) {
  Decoder in(bytes);
  KeptTokens kept;
  *num_missing += in.i64();
  kept.repetition_penalty = in.f64();
  kept.offsets.resize(in.count(sizeof(int64_t)));
  for (int64_t& offset : kept.offsets) offset = in.i64();
  kept.ids = values_of_bytes<int32_t>(in.text());
  kept.is_seen = values_of_bytes<uint8_t>(in.text());
  kept.shift = values_of_bytes<float>(in.text());
  if (!in.done()) return Error{ErrorKind::kInternal, "the kept tokens of another rank cannot be read", "", ""};
  return kept;
}

// What penalties and bars depend on at each token of the rows.
std::vector<PlaceEdits> edits_of(const StepTable& table, std::span<const int64_t> rows, const Sampling& sampling) {
  std::vector<PlaceEdits> out;
  if (!sampling.penalises() && !sampling.bars()) return out;
  for (const int64_t r : rows) {
    const TableRow& row = table.row(r);
    TokenHistory history;
    history.start(sampling, row.prompt_ids);
    for (const int64_t id : row.response_ids) {
      const TokenEdits edits = history.edits();
      out.push_back({{edits.barred.begin(), edits.barred.end()}, {edits.seen.begin(), edits.seen.end()}});
      history.push(id);
    }
  }
  return out;
}

std::vector<uint8_t> mask_of(const StepTable& table, std::span<const int64_t> rows) {
  std::vector<uint8_t> mask;
  for (const int64_t r : rows) {
    const auto of_row = table.of_row<column::SampleMask>(r);
    mask.insert(mask.end(), of_row.begin(), of_row.end());
  }
  return mask;
}

// The micro-batches' places in the order of the table's rows.
KeptTokens in_table_order(const StepTable& table, const MicroPlan& plan, const std::vector<KeptTokens>& parts) {
  struct Source {
    size_t part = 0;
    int64_t begin = 0;
  };
  std::vector<Source> sources(static_cast<size_t>(table.num_rows()));
  for (size_t i = 0; i < plan.size(); ++i) {
    int64_t begin = 0;
    for (const int64_t row : plan[i]) {
      sources[static_cast<size_t>(row)] = {i, begin};
      begin += table.row_tokens(row);
    }
  }
  KeptTokens out;
  for (int64_t row = 0; row < table.num_rows(); ++row) {
    const auto& [part, begin] = sources[static_cast<size_t>(row)];
    out.append(parts[part], begin, begin + table.row_tokens(row));
  }
  return out;
}

// The bytes of a micro-batch of which this rank has found the places of its own tokens.
Result<std::string> bytes_of_all(const TargetShare& targets, const KeptTokens& own, int64_t num_missing) {
  if (targets.is_whole()) return bytes_of_kept(own, num_missing);
  std::vector<KeptTokens> parts;
  int64_t sum_missing = 0;
  for (const std::string& bytes : TRY(targets.group()->exchange(bytes_of_kept(own, num_missing))))
    parts.push_back(TRY(kept_of_bytes(bytes, &sum_missing)));
  KeptTokens whole;
  targets.visit_whole(
      [&](int rank, int64_t place) { whole.append(parts[static_cast<size_t>(rank)], place, place + 1); });
  return bytes_of_kept(whole, sum_missing);
}

}  // namespace

Result<KeptCount> put_kept_tokens(const Model& model, StepTable& table, const Sampling& sampling,
                                  const LearnerOptions& options) {
  const c10::NoGradGuard no_grad;
  const MicroPlan plan = plan_micro_batches(table, all_rows(table), options.micro_batch);
  const RankShare share(micro_tokens(table, plan), options.ranks);
  std::vector<std::string> bytes(plan.size());
  const auto find = [&](size_t i) -> Result<> {
    const PackedForward forward = TRY(forward_rows(model, table, plan[i], options.pass));
    int64_t num_missing = 0;
    std::vector<PlaceEdits> edits = edits_of(table, plan[i], sampling);
    if (!edits.empty()) edits = forward.targets.own(std::move(edits));
    const KeptTokens kept = find_kept_tokens(forward.hidden_RH, model.head(), forward.targets_R, sampling,
                                             forward.targets.own(mask_of(table, plan[i])), edits, &num_missing);
    TRY(check_tensor_ranks(model));
    bytes[i] = TRY(bytes_of_all(forward.targets, kept, num_missing));
    return {};
  };
  for (const std::optional<size_t>& micro : share.rounds()) {
    if (micro) TRY(find(*micro));
    TRY(finish_forward({&model}));
  }
  TRY(share.exchange(bytes, "kept tokens"));
  KeptCount count;
  std::vector<KeptTokens> parts;
  for (const std::string& part : bytes) parts.push_back(TRY(kept_of_bytes(part, &count.num_missing)));
  KeptTokens kept = in_table_order(table, plan, parts);
  const auto mask = table.get<column::SampleMask>();
  for (size_t t = 0; t < mask.size(); ++t) {
    if (mask[t] == 0) continue;
    ++count.num_tokens;
    count.num_kept += kept.offsets[t + 1] - kept.offsets[t];
  }
  table.keep(std::move(kept));
  return count;
}

}  // namespace mortise
