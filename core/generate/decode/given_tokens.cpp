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

  // The prompts, and then token after token of all rows, as sampling does it: tokens of one row need passes of their own.
  // `rows`: of whole groups.
  Result<> fill(std::span<const GivenRow> rows) {
    std::vector<Place> places(rows.size());
    int64_t longest = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const bool begins = r == 0 || rows[r].group != rows[r - 1].group;
      places[r].prompt = begins ? TRY(push_prompt(rows[r].prompt_ids)) : places[r - 1].prompt;
      places[r].pages = take_pages(num_decoded(rows[r]));
      places[r].first_slot = TRY(take(num_decoded(rows[r])));
      store_.put_row(rows[r].row_id, places[r].prompt->slots, places[r].first_slot);
      longest = std::max(longest, num_decoded(rows[r]));
    }
    flush();
    for (int64_t t = 0; t < longest; ++t) {
      for (size_t r = 0; r < rows.size(); ++r) {
        if (t < num_decoded(rows[r])) push_token(rows[r], places[r], t);
      }
      flush();
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      give_back(places[r].pages);
      if (r + 1 == rows.size() || rows[r].group != rows[r + 1].group) give_back(places[r].prompt->pages);
    }
    return {};
  }

 private:
  struct Prompt {
    std::shared_ptr<std::vector<int64_t>> slots;
    std::vector<float*> pages;
  };
  struct Place {
    std::shared_ptr<Prompt> prompt;  // one for all rows of a group
    std::vector<float*> pages;
    int64_t first_slot = 0;
  };

  // The last token predicts nothing.
  static int64_t num_decoded(const GivenRow& row) {
    return std::max<int64_t>(0, static_cast<int64_t>(row.response_ids.size()) - 1);
  }

  Result<int64_t> take(int64_t count) {
    const std::optional<int64_t> first = store_.take(count);
    if (first) return *first;
    return Error{ErrorKind::kData, "the rows that the checkpoint holds are longer than the configuration allows now",
                 "rollout.reuse_forward_mib", "set rollout.reuse_forward_mib to 0, with --allow-change"};
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

  Result<std::shared_ptr<Prompt>> push_prompt(std::span<const int64_t> ids) {
    const auto length = static_cast<int64_t>(ids.size());
    auto prompt = std::make_shared<Prompt>();
    prompt->slots = std::make_shared<std::vector<int64_t>>(ids.size());
    std::iota(prompt->slots->begin(), prompt->slots->end(), TRY(take(length)));
    prompt->pages = take_pages(length);
    forward_.reserve_positions(length);
    for (int64_t i = 0; i < length; ++i) {
      PassRow row;
      row.token = ids[static_cast<size_t>(i)];
      row.position = i;
      row.own_pages = prompt->pages.data();
      row.own_length = i + 1;
      row.slot = (*prompt->slots)[static_cast<size_t>(i)];
      push(row, /*is_wanted=*/i + 1 == length);
    }
    return prompt;
  }

  void push_token(const GivenRow& row, const Place& place, int64_t t) {
    const auto length = static_cast<int64_t>(row.prompt_ids.size());
    forward_.reserve_positions(length + t + 1);
    PassRow out{row.response_ids[static_cast<size_t>(t)],
                length + t,
                place.prompt->pages.data(),
                length,
                place.pages.data(),
                t + 1};
    out.slot = place.first_slot + t;
    push(out, /*is_wanted=*/true);
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
  // Whole groups, until a token of each of their rows fills a pass.
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    const auto is_full = [&] { return end - begin >= size_t{kPassTokens} && rows[end].group != rows[end - 1].group; };
    for (++end; end < rows.size() && !is_full();) ++end;
    TRY(tokens.fill(rows.subspan(begin, end - begin)));
  }
  return {};
}

}  // namespace mortise
