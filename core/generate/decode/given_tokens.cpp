// See given_tokens.h.
#include "generate/decode/given_tokens.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "generate/decode/forward.h"

namespace mortise {
namespace {

constexpr int64_t kPassTokens = 256;

class GivenTokens {
 public:
  GivenTokens(const Model& model, const Kernels& kernels, int num_threads)
      : config_(model.config()),
        store_(*model.sampled_forward()),
        kv_({config_.num_layers, config_.num_kv_heads, config_.head_dim}, INT64_MAX / 2),
        team_(num_threads),
        forward_(config_, kernels, kPassTokens),
        hidden_(kPassTokens * config_.hidden_size) {
    weights_.pack(config_, model.weights(), WeightFormat::kFloat32, team_);
  }

  // The prompt, and then token after token of all rows, as sampling does it.
  Result<> fill(std::span<const GivenRow> group) {
    const std::span<const int64_t> prompt = group.front().prompt_ids;
    const auto length = static_cast<int64_t>(prompt.size());
    int64_t longest = 0;
    for (const GivenRow& row : group) longest = std::max(longest, num_decoded(row));
    forward_.reserve_positions(length + longest + 1);
    auto slots = std::make_shared<std::vector<int64_t>>(prompt.size());
    std::iota(slots->begin(), slots->end(), TRY(take(length)));
    std::vector<float*> pages = take_pages(length);
    for (int64_t i = 0; i < length; ++i) {
      PassRow row;
      row.token = prompt[static_cast<size_t>(i)];
      row.position = i;
      row.own_pages = pages.data();
      row.own_length = i + 1;
      row.slot = (*slots)[static_cast<size_t>(i)];
      push(row, /*is_wanted=*/i + 1 == length);
    }
    flush();
    std::vector<std::vector<float*>> own(group.size());
    std::vector<int64_t> first(group.size());
    for (size_t r = 0; r < group.size(); ++r) {
      own[r] = take_pages(num_decoded(group[r]));
      first[r] = TRY(take(num_decoded(group[r])));
      store_.put_row(group[r].row_id, slots, first[r]);
    }
    for (int64_t t = 0; t < longest; ++t) {
      for (size_t r = 0; r < group.size(); ++r) {
        if (t >= num_decoded(group[r])) continue;
        PassRow row{
            group[r].response_ids[static_cast<size_t>(t)], length + t, pages.data(), length, own[r].data(), t + 1};
        row.slot = first[r] + t;
        push(row, /*is_wanted=*/true);
      }
      flush();
    }
    for (std::vector<float*>& taken : own) give_back(taken);
    give_back(pages);
    return {};
  }

 private:
  // The last token predicts nothing.
  static int64_t num_decoded(const GivenRow& row) {
    return std::max<int64_t>(0, static_cast<int64_t>(row.response_ids.size()) - 1);
  }

  Result<int64_t> take(int64_t count) {
    const std::optional<int64_t> first = store_.take(count);
    if (first) return *first;
    return Error{ErrorKind::kData, "the rows of the unfinished step are longer than the configuration allows",
                 "rollout.reuse_forward_mib", "resume from a global_step_N folder"};
  }

  std::vector<float*> take_pages(int64_t tokens) {
    std::vector<float*> pages(static_cast<size_t>(KvShape::pages_for(tokens)));
    kv_.reserve(static_cast<int64_t>(pages.size()));
    std::ranges::generate(pages, [&] { return kv_.take(); });
    return pages;
  }
  void give_back(std::vector<float*>& pages) {
    kv_.unreserve(static_cast<int64_t>(pages.size()));
    kv_.give_back(pages);
  }

  void push(PassRow row, bool is_wanted) {
    if (is_wanted) row.hidden = hidden_.data() + static_cast<int64_t>(rows_.size()) * config_.hidden_size;
    store_.set_token(row.slot, row.token);
    rows_.push_back(row);
    if (static_cast<int64_t>(rows_.size()) == forward_.max_rows()) flush();
  }
  void flush() {
    if (!rows_.empty()) forward_.run(weights_, rows_, kv_.shape(), team_, &store_);
    rows_.clear();
  }

  const ModelConfig& config_;
  SampledForward& store_;
  KvCache kv_;
  Team team_;
  PackedWeights weights_;
  DecodeForward forward_;
  FloatBuffer hidden_;
  std::vector<PassRow> rows_;
};

}  // namespace

Result<> fill_sampled_forward(const Model& model, std::span<const GivenRow> rows, Isa isa, int num_threads) {
  const Kernels* const kernels = find_kernels(isa);
  if (kernels == nullptr) {
    return Error{ErrorKind::kConfig, "this CPU does not have the instruction set of rollout.kernels", "rollout.kernels",
                 "use auto"};
  }
  model.sampled_forward()->forget();
  GivenTokens tokens(model, *kernels, num_threads > 0 ? num_threads : at::get_num_threads());
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && rows[end].group == rows[begin].group) ++end;
    TRY(tokens.fill(rows.subspan(begin, end - begin)));
  }
  return {};
}

}  // namespace mortise
