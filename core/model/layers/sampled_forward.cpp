// See sampled_forward.h.
#include "model/layers/sampled_forward.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "model/tensor/kernel.h"

namespace mortise {
namespace {

constexpr int64_t kLineFloats = 16;       // a line of the cache
constexpr int64_t kCopiedAtOnce = 16384;  // that a task copies, at least

// What the slots of a matrix take: the next one begins on a line of the cache.
int64_t matrix_size(int64_t num_slots, int64_t width) { return ceil_div(num_slots * width, kLineFloats) * kLineFloats; }

}  // namespace

SampledForward::Widths::Widths(const ModelConfig& config)
    : qkv(config.qkv_size()),
      attended(config.q_size()),
      lse(config.num_heads),
      hidden(config.hidden_size),
      gate_up(2 * config.intermediate_size) {}

int64_t SampledForward::bytes_per_token(const ModelConfig& config) {
  return Widths(config).sum() * config.num_layers * static_cast<int64_t>(sizeof(float)) +
         static_cast<int64_t>(sizeof(int64_t));
}

SampledForward::SampledForward(const ModelConfig& config, int64_t num_slots, int64_t group_slots)
    : widths_(config), num_slots_(num_slots), group_slots_(group_slots), ids_(static_cast<size_t>(num_slots), -1) {
  const auto size = [&](int64_t width) { return matrix_size(num_slots, width); };
  const int64_t layer_size =
      size(widths_.qkv) + size(widths_.attended) + size(widths_.lse) + 2 * size(widths_.hidden) + size(widths_.gate_up);
  numbers_.reserve(config.num_layers * layer_size);
  float* next = numbers_.data();
  const auto place = [&](int64_t width) { return std::exchange(next, next + size(width)); };
  for (int64_t i = 0; i < config.num_layers; ++i) {
    SampledSlots& slots = layers_.emplace_back();
    slots.qkv = place(widths_.qkv);
    slots.attended = place(widths_.attended);
    slots.lse = place(widths_.lse);
    slots.mixed = place(widths_.hidden);
    slots.gate_up = place(widths_.gate_up);
    slots.out = place(widths_.hidden);
  }
}

void SampledForward::begin(uint64_t seed, int64_t step) {
  forget();
  is_open_ = is_current_ = true;
  seed_ = seed;
  step_ = step;
}

void SampledForward::begin_filled() {
  forget();
  is_current_ = true;
}

void SampledForward::forget() {
  is_open_ = is_current_ = false;
  std::fill_n(ids_.begin(), num_taken_, -1);  // nobody reads a slot that is not filled again
  rows_.clear();
  filled_prompts_.clear();
  free_groups_.clear();
  num_taken_ = 0;
  ++version_;
}

std::optional<int64_t> SampledForward::take(int64_t count) {
  if (group_slots_ > 0 && count > group_slots_) return std::nullopt;
  if (!free_groups_.empty()) {
    const int64_t first = free_groups_.back();
    free_groups_.pop_back();
    return first;
  }
  if (count > num_slots_ - num_taken_) return std::nullopt;
  return std::exchange(num_taken_, num_taken_ + count);
}

void SampledForward::keep_rows(std::span<const int64_t> row_ids) {
  const std::set<int64_t> kept(row_ids.begin(), row_ids.end());
  std::erase_if(rows_, [&](const auto& row) { return !kept.contains(row.first); });
  filled_prompts_.clear();  // their groups may be gone, or get other numbers
  std::set<int64_t> used;
  for (const auto& [id, row] : rows_) used.insert(row.prompt->front() / group_slots_);
  free_groups_.clear();
  for (int64_t group = num_taken_ / group_slots_ - 1; group >= 0; --group) {
    if (used.contains(group)) continue;
    free_groups_.push_back(group * group_slots_);
    std::fill_n(ids_.begin() + group * group_slots_, group_slots_, -1);
  }
}

void SampledForward::number_rows(std::span<const int64_t> row_ids) {
  keep_rows(row_ids);
  std::map<int64_t, Row> numbered;
  for (size_t i = 0; i < row_ids.size(); ++i) {
    const auto found = rows_.find(row_ids[i]);
    if (found != rows_.end()) numbered[static_cast<int64_t>(i)] = found->second;
  }
  rows_ = std::move(numbered);
}

void SampledForward::put_row(int64_t row_id, std::shared_ptr<const std::vector<int64_t>> prompt,
                             int64_t first_response) {
  rows_[row_id] = {std::move(prompt), first_response};
}

Result<std::shared_ptr<const SampledPass>> SampledForward::pass(const PackedBatch& packed,
                                                                std::span<const int64_t> row_ids) const {
  std::vector<int64_t> slots(static_cast<size_t>(packed.num_tokens()), -1);
  for (size_t b = 0; b < row_ids.size(); ++b) {
    const PackedRow& place = packed.rows[b];
    const auto found = rows_.find(row_ids[b]);
    if (found == rows_.end()) {
      return Error{ErrorKind::kInternal, fmt::format("sampling kept no numbers of row {}", row_ids[b]),
                   "rollout.reuse_forward_mib", "report this, and set rollout.reuse_forward_mib to 0"};
    }
    std::ranges::copy(*found->second.prompt, slots.begin() + place.prompt);
    for (int64_t i = 0; i < place.num_response; ++i)
      slots[static_cast<size_t>(place.response + i)] = found->second.first_response + i;
  }
  const int64_t* const ids = packed.token_ids_N.const_data_ptr<int64_t>();
  for (size_t n = 0; n < slots.size(); ++n) {
    if (slots[n] >= 0 && slots[n] < num_taken_ && ids_[static_cast<size_t>(slots[n])] == ids[n]) continue;
    return Error{ErrorKind::kInternal, "the update has other tokens than those that were sampled",
                 "rollout.reuse_forward_mib", "report this, and set rollout.reuse_forward_mib to 0"};
  }
  return std::make_shared<const SampledPass>(*this, std::move(slots));
}

SampledPass::SampledPass(const SampledForward& store, std::vector<int64_t> slots)
    : store_(store), slots_(std::move(slots)) {
  for (size_t n = 1; n < slots_.size(); ++n) is_run_ = is_run_ && slots_[n] == slots_[n - 1] + 1;
}

// Plain tensors, not views: an autograd function may give them as its results. In place only from the start of a line of
// the cache, as copies begin: some products of libraries have other last bits elsewhere, and a resumed run has other slots.
at::Tensor SampledPass::rows(const float* from, int64_t width) const {
  const int64_t count = num_tokens();
  if (is_run_ && count > 0 && slots_.front() * width % kLineFloats == 0) {
    auto* const first = const_cast<float*>(from + slots_.front() * width);
    return at::from_blob(first, {count, width}, at::kFloat);
  }
  at::Tensor out = at::empty({count, width}, at::kFloat);
  auto* const to = out.mutable_data_ptr<float>();
  compute_ranges(count, std::max<int64_t>(1, kCopiedAtOnce / width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      std::copy_n(from + slots_[static_cast<size_t>(n)] * width, width, to + n * width);
  });
  return out;
}

SampledLayer SampledPass::layer(int64_t index) const {
  const SampledSlots& from = store_.layer(index);
  const SampledForward::Widths& w = store_.widths_;
  return {rows(from.qkv, w.qkv),      rows(from.attended, w.attended), rows(from.lse, w.lse),
          rows(from.mixed, w.hidden), rows(from.gate_up, w.gate_up),   rows(from.out, w.hidden)};
}

at::Tensor SampledPass::last_out() const {
  return rows(store_.layer(store_.num_layers() - 1).out, store_.widths_.hidden);
}

}  // namespace mortise
