// See device_sampler.h.
#include "generate/device/device_sampler.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <vector>

#include "generate/sample/shared_tokens.h"

namespace mortise {
namespace {

constexpr int64_t kHostLogitBytes = int64_t{64} << 20;     // logits of a block of rows on the host
constexpr int64_t kDeviceLogitBytes = int64_t{512} << 20;  // the same on the device

MortiseCudaDraw draw_of(const SamplingParams& params, double uniform) {
  MortiseCudaDraw out{uniform, params.top_p, params.inverse_temperature(), static_cast<float>(params.min_p), 0, 0, 0};
  out.top_k = static_cast<int32_t>(std::clamp<int64_t>(params.top_k, 0, INT32_MAX));
  out.greedy = params.greedy() ? 1 : 0;
  out.typical_p = params.typical_p < 1.0 ? params.typical_p : 0.0;
  return out;
}

// [count, sizeof(T)] bytes on the host, and the numbers in them.
template <class T>
std::pair<at::Tensor, T*> host_array(int64_t count) {
  const at::Tensor bytes = at::empty({count, static_cast<int64_t>(sizeof(T))}, at::kByte);
  return {bytes, static_cast<T*>(bytes.mutable_data_ptr())};
}
template <class T>
at::Tensor device_array(int64_t count, const at::TensorOptions& place) {
  return at::empty({count, static_cast<int64_t>(sizeof(T))}, place.dtype(at::kByte));
}

// The words of the rows' sets.
at::Tensor fill_allowed(std::span<const DrawRow> rows, std::span<const size_t> guided, const at::Tensor& out) {
  auto* to = static_cast<uint64_t*>(out.mutable_data_ptr());
  for (const size_t row : guided) to = std::ranges::copy(rows[row].sample->guide.allowed()->words, to).out;
  return out;
}

}  // namespace

double DeviceSampler::uniform_of(const DrawRow& row) const {
  RngKey key = key_of(*row.sample, purpose_);
  key.token += static_cast<uint32_t>(row.num_later);
  return unit_double(random_u64(key));
}

void DeviceSampler::draw_on_host(const at::Tensor& logits_NV, std::span<const DrawRow> rows,
                                 std::span<DrawnToken> out) const {
  const at::Tensor logits = logits_NV.to(at::TensorOptions().device(at::kCPU).dtype(at::kFloat)).contiguous();
  const float* const data = logits.const_data_ptr<float>();
  const int64_t vocab = logits.size(1);
  at::parallel_for(0, logits.size(0), 1, [&](int64_t from, int64_t to) {
    for (int64_t r = from; r < to; ++r) {
      RunningSample& sample = *rows[static_cast<size_t>(r)].sample;
      const GenerateRequest& request = sample.group->request;
      const std::span<const float> row(data + r * vocab, static_cast<size_t>(vocab));
      DrawnToken& own = out[static_cast<size_t>(r)];
      own.token = sample_plain(row, {&request.sampling, sample.edits(), uniform_of(rows[static_cast<size_t>(r)])});
      append_top_log_probs_plain(row, request.sampling, request.num_top_log_probs, own.top);
    }
  });
}

DrawInputs DrawInputs::on(const c10::Device& device) const {
  const auto place = [&](const at::Tensor& bytes) { return bytes.defined() ? sent_to(device, bytes) : bytes; };
  return {place(draws), place(edits), place(num_top), most_top, allowed};
}

// Puts the sets of tokens that patterns allow where the head lies, and points `edits` to them. Undefined if there are none.
at::Tensor DeviceSampler::place_allowed(std::span<const DrawRow> rows, MortiseCudaEdits* edits) const {
  const int64_t num_words = (layers_.config().vocab_size + 63) / 64;
  std::vector<size_t> guided;
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].sample->guide.allowed() != nullptr) guided.push_back(i);
  if (guided.empty()) return {};
  const at::Tensor host = at::empty({static_cast<int64_t>(guided.size()), num_words}, at::kLong);
  const at::Tensor sets = sent_to(layers_.head().weight_VH.device(), fill_allowed(rows, guided, host));
  const auto* set = static_cast<const uint32_t*>(sets.const_data_ptr());
  for (const size_t row : guided) {
    MortiseCudaEdits& own = edits[row];
    own.allowed = set;
    set += num_words * 2;
    if (!rows[row].sample->edits().barred.empty()) continue;
    own.num_words = own.num_ends = 0;  // none is barred now, or the pattern wins
  }
  return sets;
}

DrawInputs DeviceSampler::inputs(std::span<const DrawRow> rows) const {
  DrawInputs out;
  const bool has_edits = std::ranges::any_of(
      rows, [](const DrawRow& row) { return row.history != nullptr || row.sample->guide.allowed() != nullptr; });
  const auto num_rows = static_cast<int64_t>(rows.size());
  const auto [draw_bytes, draws] = host_array<MortiseCudaDraw>(num_rows);
  const auto [edit_bytes, edits] = host_array<MortiseCudaEdits>(has_edits ? num_rows : 0);
  std::vector<int32_t> num_top;
  for (size_t i = 0; i < rows.size(); ++i) {
    const GenerateRequest& request = rows[i].sample->group->request;
    draws[i] = draw_of(request.sampling, uniform_of(rows[i]));
    num_top.push_back(static_cast<int32_t>(std::min(request.num_top_log_probs, layers_.config().vocab_size)));
    out.most_top = std::max(out.most_top, num_top.back());
    if (!has_edits) continue;
    const int64_t position = static_cast<int64_t>(rows[i].sample->sequence.ids.size()) + rows[i].num_later;
    edits[i] = rows[i].history == nullptr ? MortiseCudaEdits{} : rows[i].history->edits(request.sampling, position);
  }
  if (has_edits) out.allowed = place_allowed(rows, edits);
  out.draws = draw_bytes;
  if (has_edits) out.edits = edit_bytes;
  if (out.most_top > 0) out.num_top = at::tensor(num_top, at::kInt);
  return out;
}

// Draws for some rows, from row `begin` on.
DrawnRows DeviceSampler::draw_block(const at::Tensor& logits_NV, const DrawInputs& placed, int64_t begin) const {
  const at::Tensor logits = logits_NV.contiguous();
  const int64_t num_rows = logits.size(0), vocab = logits.size(1);
  void* const stream = stream_of(logits.device());
  const auto* const draws = static_cast<const MortiseCudaDraw*>(placed.draws.const_data_ptr()) + begin;
  at::Tensor edited_logits, totals;
  MortiseCudaEdited edited{};
  if (placed.edits.defined()) {
    edited_logits = at::empty({num_rows, vocab}, logits.options());
    totals = device_array<MortiseCudaTotal>(num_rows, logits.options());
    edited = {static_cast<const MortiseCudaEdits*>(placed.edits.const_data_ptr()) + begin,
              edited_logits.mutable_data_ptr<float>(), static_cast<MortiseCudaTotal*>(totals.mutable_data_ptr())};
  }
  DrawnRows out{device_array<MortiseCudaDrawn>(num_rows, logits.options()), {}};
  check_started(kernels_->sample(logits.const_data_ptr<float>(), num_rows, vocab, static_cast<int32_t>(vocab), draws,
                                 edited, static_cast<MortiseCudaDrawn*>(out.drawn.mutable_data_ptr()), stream),
                "sample");
  if (placed.most_top == 0) return out;
  out.top = at::empty({num_rows, placed.most_top * static_cast<int64_t>(sizeof(MortiseCudaTop))}, out.drawn.options());
  check_started(kernels_->top(logits.const_data_ptr<float>(), num_rows, vocab, static_cast<int32_t>(vocab), draws,
                              placed.num_top.const_data_ptr<int32_t>() + begin, placed.most_top,
                              static_cast<MortiseCudaTop*>(out.top.mutable_data_ptr()), stream),
                "top");
  return out;
}

int64_t DeviceSampler::rows_of_block(int64_t vocab_size, bool has_edits) {
  return std::max<int64_t>(1, kDeviceLogitBytes / (vocab_size * (has_edits ? 8 : 4)));
}

DrawnRows DeviceSampler::draw(const at::Tensor& hidden_NH, const DrawInputs& placed) const {
  const int64_t block = rows_of_block(layers_.config().vocab_size, placed.edits.defined());
  const int64_t num_rows = hidden_NH.size(0);
  const TokenShare mine = token_share(static_cast<size_t>(num_rows), layers_.ranks().get());
  const auto end = static_cast<int64_t>(mine.end);
  std::vector<at::Tensor> drawn = {device_array<MortiseCudaDrawn>(0, hidden_NH.options())}, top;
  for (auto begin = static_cast<int64_t>(mine.begin); begin < end; begin += block) {
    const int64_t count = std::min(block, end - begin);
    const DrawnRows part = draw_block(head_logits(hidden_NH.narrow(0, begin, count), layers_.head()), placed, begin);
    drawn.push_back(part.drawn);
    if (part.top.defined()) top.push_back(part.top);
  }
  if (layers_.ranks() != nullptr) return {gather_drawn(at::cat(drawn, 0), num_rows), at::Tensor()};
  return {at::cat(drawn, 0), top.empty() ? at::Tensor() : at::cat(top, 0)};
}

// The rows that all ranks have drawn, in order.
at::Tensor DeviceSampler::gather_drawn(const at::Tensor& own, int64_t num_rows) const {
  TensorRanks& ranks = *layers_.ranks();
  const auto rows = static_cast<size_t>(num_rows);
  const int64_t size = ranks.size(), most = (num_rows + size - 1) / size;
  const at::Tensor sent = device_array<MortiseCudaDrawn>(most, own.options()).zero_();
  sent.narrow(0, 0, own.size(0)).copy_(own);
  const at::Tensor all = at::zeros({size * most, sent.size(1)}, sent.options());  // ids also if a rank is lost
  ranks.gather(sent, all);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const auto count = static_cast<int64_t>(token_share(rows, rank, ranks.size()).size());
    parts.push_back(all.narrow(0, rank * most, count));
  }
  return at::cat(parts, 0);
}

StartedDraws DeviceSampler::fetch(const DrawnRows& rows, const DrawInputs& inputs) {
  StartedDraws out{rows, HostCopy(rows.drawn), std::nullopt, inputs.num_top, inputs.allowed};
  if (rows.top.defined()) out.top.emplace(rows.top);
  return out;
}

StartedDraws DeviceSampler::start(const at::Tensor& hidden_NH, std::span<const DrawRow> rows) const {
  const DrawInputs told = inputs(rows);
  return fetch(draw(hidden_NH, told.on(hidden_NH.device())), told);
}

std::vector<DrawnToken> DeviceSampler::finish(StartedDraws& draws) {
  std::vector<DrawnToken> out;
  if (!draws.drawn) return out;
  const at::Tensor drawn = draws.drawn->wait(), best = draws.top ? draws.top->wait() : at::Tensor();
  const auto* const tokens = static_cast<const MortiseCudaDrawn*>(drawn.const_data_ptr());
  for (int64_t i = 0; i < drawn.size(0); ++i) {
    DrawnToken& own = out.emplace_back();
    own.token = {tokens[i].id, tokens[i].log_prob, tokens[i].filtered_log_prob};
    if (!best.defined()) continue;
    const auto* const top = static_cast<const MortiseCudaTop*>(best.select(0, i).const_data_ptr());
    const int32_t num_top = draws.num_top.const_data_ptr<int32_t>()[i];
    for (int32_t t = 0; t < num_top; ++t) own.top.push_back({top[t].id, top[t].log_prob});
  }
  return out;
}

std::vector<DrawnToken> DeviceSampler::run(const at::Tensor& hidden_NH, std::span<const DrawRow> rows) const {
  if (kernels_ != nullptr) {
    StartedDraws draws = start(hidden_NH, rows);
    return finish(draws);
  }
  std::vector<DrawnToken> out(rows.size());
  const TokenShare mine = token_share(rows.size(), layers_.ranks().get());
  const auto block = static_cast<size_t>(std::max<int64_t>(1, kHostLogitBytes / (layers_.config().vocab_size * 4)));
  for (size_t first = mine.begin; first < mine.end; first += block) {
    const size_t size = std::min(block, mine.end - first);
    const at::Tensor hidden = hidden_NH.narrow(0, static_cast<int64_t>(first), static_cast<int64_t>(size));
    draw_on_host(head_logits(hidden, layers_.head()), rows.subspan(first, size), std::span(out).subspan(first, size));
  }
  if (layers_.ranks() == nullptr) return out;
  std::vector<SampledToken> tokens;
  for (const DrawnToken& drawn : out) tokens.push_back(drawn.token);
  gather_tokens(*layers_.ranks(), tokens);
  for (size_t i = 0; i < out.size(); ++i) out[i].token = tokens[i];
  return out;
}

}  // namespace mortise
