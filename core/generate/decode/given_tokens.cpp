// See given_tokens.h.
#include "generate/decode/given_tokens.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "generate/decode/forward.h"
#include "model/tensor/compute_team.h"

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

  // The prompt, and then the tokens of one row after the other: those of a pass see the keys of those before them.
  Result<> fill(std::span<const GivenRow> group) {
    num_left_ = 0;
    const std::span<const int64_t> prompt = group.front().prompt_ids;
    const auto length = static_cast<int64_t>(prompt.size());
    int64_t longest = 0;
    for (const GivenRow& row : group) longest = std::max(longest, num_decoded(row));
    forward_.reserve_positions(length + longest + 1);
    std::vector<float*> pages = take_pages(length);
    const auto slots = TRY(decode_prompt(group.front(), pages));
    std::vector<std::vector<float*>> own;
    for (const GivenRow& given : group) {
      const int64_t count = num_decoded(given);
      own.push_back(take_pages(count));
      const int64_t first = TRY(take(count));
      store_.put_row(given.row_id, slots, first);
      for (int64_t t = 0; t < count; ++t) {
        PassRow row{
            given.response_ids[static_cast<size_t>(t)], length + t, pages.data(), length, own.back().data(), t + 1};
        row.slot = first + t;
        push(row, /*is_wanted=*/true);
      }
    }
    flush();
    for (std::vector<float*>& taken : own) give_back(taken);
    give_back(pages);
    return {};
  }

 private:
  // The slots of the prompt. Its keys and values are needed again if other rows of the group were filled before.
  Result<std::shared_ptr<const std::vector<int64_t>>> decode_prompt(const GivenRow& group,
                                                                    const std::vector<float*>& pages) {
    auto& known = store_.filled_prompt(group.group);
    if (known == nullptr) {
      auto slots = std::make_shared<std::vector<int64_t>>(group.prompt_ids.size());
      std::iota(slots->begin(), slots->end(), TRY(take(static_cast<int64_t>(slots->size()))));
      known = std::move(slots);
    }
    for (size_t i = 0; i < known->size(); ++i) {
      PassRow row;
      row.token = group.prompt_ids[i];
      row.position = static_cast<int64_t>(i);
      row.own_pages = pages.data();
      row.own_length = row.position + 1;
      row.slot = (*known)[i];
      push(row, /*is_wanted=*/i + 1 == known->size());
    }
    flush();
    return known;
  }

  // The last token predicts nothing.
  static int64_t num_decoded(const GivenRow& row) {
    return std::max<int64_t>(0, static_cast<int64_t>(row.response_ids.size()) - 1);
  }

  // Where groups take their slots as a whole, the next of this one. Such a group has all its rows in one call: it was
  // sampled as a whole, or not at all, and the pass for old_log_prob fills all rows before updates read some.
  Result<int64_t> take(int64_t count) {
    const int64_t whole = store_.group_slots();
    if (whole == 0 || count > num_left_) {
      const bool fits = whole == 0 || count <= whole;
      const std::optional<int64_t> first = fits ? store_.take(std::max(count, whole)) : std::nullopt;
      if (!first) {
        return Error{ErrorKind::kData, "the rows of the unfinished step are longer than the configuration allows",
                     "rollout.reuse_forward_mib", "resume from a global_step_N folder"};
      }
      next_ = *first;
      num_left_ = std::max(count, whole);
    }
    num_left_ -= count;
    return std::exchange(next_, next_ + count);
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
  int64_t next_ = 0, num_left_ = 0;  // the slots that this group has taken and not used
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
  GivenTokens tokens(model, *kernels, num_threads > 0 ? num_threads : compute_threads());
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && rows[end].group == rows[begin].group) ++end;
    TRY(tokens.fill(rows.subspan(begin, end - begin)));
  }
  return {};
}

}  // namespace mortise
