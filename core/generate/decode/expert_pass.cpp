// The mixture of experts in a decode pass. The rows are sorted by expert; the members share the panels of all experts'
// matrices, so that each weight is read by one core only. A row's experts are summed in ascending order, so its numbers
// do not depend on the other rows.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "generate/decode/pass_member.h"
#include "generate/decode/top_experts.h"

namespace mortise {
namespace {

float sigmoid_of(const float* x, const float* weight, int64_t size) {
  float sum = 0.0F;
  for (int64_t i = 0; i < size; ++i) sum += x[i] * weight[i];
  return 1.0F / (1.0F + std::exp(-sum));
}

void softmax(float* x, int64_t size) {
  const float most = *std::max_element(x, x + size);
  float sum = 0.0F;
  for (int64_t i = 0; i < size; ++i) sum += x[i] = std::exp(x[i] - most);
  for (int64_t i = 0; i < size; ++i) x[i] /= sum;
}

// gpt-oss: the logits of the first `count` become their softmax, but for its divisor.
void exp_of_chosen(std::vector<std::pair<float, int64_t>>& chosen, int64_t count) {
  float most = chosen.front().first;
  for (int64_t i = 1; i < count; ++i) most = std::max(most, chosen[static_cast<size_t>(i)].first);
  for (int64_t i = 0; i < count; ++i) {
    float& score = chosen[static_cast<size_t>(i)].first;
    score = std::exp(score - most);
  }
}

}  // namespace

void DecodeForward::route(const Member& m, int64_t index, int64_t begin, int64_t end) const {
  const PackedLayer& layer = m.weights->layers[static_cast<size_t>(index)];
  const MoeConfig& moe = config_.moe;
  const int64_t k = moe.experts_per_token;
  for (int64_t p = 0; p < layer.router.panels && begin < end; ++p) {
    layer.router.multiply(kernels_, p, normed_.data() + begin * hidden_stride_, hidden_stride_, end - begin,
                          router_.data() + begin * router_stride_ + p * kPanel, router_stride_, false);
  }
  std::vector<std::pair<float, int64_t>> queue;
  for (int64_t i = begin; i < end; ++i) {
    float* const probs = router_.data() + i * router_stride_;
    if (!moe.is_gpt_oss) softmax(probs, moe.num_experts);
    take_top(probs, moe.num_experts, k, queue);
    if (moe.is_gpt_oss) exp_of_chosen(queue, k);
    float sum = 0.0F;
    for (int64_t j = 0; j < k; ++j) sum += queue[static_cast<size_t>(j)].first;
    std::sort(queue.begin(), queue.begin() + k, [](const auto& a, const auto& b) { return a.second < b.second; });
    uint16_t* const told = m.rows[static_cast<size_t>(i)].experts;
    for (int64_t j = 0; j < k; ++j) {
      const auto& [prob, expert] = queue[static_cast<size_t>(j)];
      expert_of_[i * k + j] = expert;
      expert_weight_.data()[i * k + j] = moe.normalizes ? prob / sum : prob;
      if (told != nullptr) told[expert_layer_[static_cast<size_t>(index)] * k + j] = static_cast<uint16_t>(expert);
    }
    if (layer.shared_gate != nullptr) {
      const float* const x = normed_.data() + i * hidden_stride_;
      shared_scale_.data()[i] = sigmoid_of(x, layer.shared_gate, config_.hidden_size);
    }
  }
}

void DecodeForward::sort_by_expert(const Member& m, int64_t num_experts) const {
  const int64_t k = config_.moe.experts_per_token;
  const int64_t from = m.first * k;
  const auto count = static_cast<size_t>((m.last - m.first) * k);
  ExpertSort& sort = *m.sort;
  sort.begin.assign(static_cast<size_t>(num_experts) + 1, 0);
  sort.row.resize(count);
  sort.place.resize(count);
  const int64_t* const expert = expert_of_.get() + from;
  for (size_t i = 0; i < count; ++i) ++sort.begin[static_cast<size_t>(expert[i]) + 1];
  for (size_t e = 1; e < sort.begin.size(); ++e) sort.begin[e] += sort.begin[e - 1];
  std::vector<int64_t> next(sort.begin.begin(), sort.begin.end() - 1);
  for (size_t i = 0; i < count; ++i) {
    const int64_t place = next[static_cast<size_t>(expert[i])]++;
    sort.place[i] = place;
    sort.row[static_cast<size_t>(place)] = m.first + static_cast<int64_t>(i) / k;
  }
}

template <class Work>
void DecodeForward::share_panels(const Member& m, const PackedLayer& layer, PackedLinear PackedExpert::*matrix,
                                 const Work& work) const {
  const int64_t panels = (layer.experts.front().*matrix).panels;
  std::vector<size_t> busy;
  for (size_t e = 0; e < layer.experts.size(); ++e) {
    if (m.sort->begin[e + 1] > m.sort->begin[e]) busy.push_back(e);
  }
  const PassRange mine = share(static_cast<int64_t>(busy.size()) * panels, m.part, m.parts);
  for (int64_t unit = mine.begin; unit < mine.end; ++unit)
    work(busy[static_cast<size_t>(unit / panels)], unit % panels);
}

void DecodeForward::add_experts(const Member& m, const PackedLayer& layer) const {
  sort_by_expert(m, static_cast<int64_t>(layer.experts.size()));
  const ExpertSort& sort = *m.sort;
  const int64_t k = config_.moe.experts_per_token, hidden = config_.hidden_size;
  float* const x = expert_x_.data() + m.first * k * hidden_stride_;
  float* const y = expert_y_.data() + m.first * k * hidden_stride_;
  float* const units = expert_mlp_.data() + m.first * k * expert_stride_;
  const PassRange copied = share(static_cast<int64_t>(sort.row.size()), m.part, m.parts);
  for (int64_t i = copied.begin; i < copied.end; ++i) {
    std::memcpy(x + i * hidden_stride_, normed_.data() + sort.row[static_cast<size_t>(i)] * hidden_stride_,
                static_cast<size_t>(hidden) * sizeof(float));
  }
  m.join();
  float* const both = m.scratch->data() + kMaxQueryBlock * m.score_stride;
  share_panels(m, layer, &PackedExpert::gate_up, [&](size_t e, int64_t p) {
    const int64_t rows = sort.begin[e + 1] - sort.begin[e];
    layer.experts[e].gate_up.multiply(kernels_, p, x + sort.begin[e] * hidden_stride_, hidden_stride_, rows, both,
                                      kPanel, false);
    float* const out = units + sort.begin[e] * expert_stride_ + p * (kPanel / 2);
    gate_panel(config_.moe.is_gpt_oss, both, kPanel, rows, out, expert_stride_);
    if (layer.experts[e].down.format != WeightFormat::kRounded) return;
    for (int64_t i = 0; i < rows; ++i) kernels_.round_bf16(out + i * expert_stride_, kPanel / 2);
  });
  m.join();
  share_panels(m, layer, &PackedExpert::down, [&](size_t e, int64_t p) {
    layer.experts[e].down.multiply(kernels_, p, units + sort.begin[e] * expert_stride_, expert_stride_,
                                   sort.begin[e + 1] - sort.begin[e], y + sort.begin[e] * hidden_stride_ + p * kPanel,
                                   hidden_stride_, false);
  });
  m.join();
  const PassRange mine = m.my_rows();
  FloatBuffer const& target = ranks_ != nullptr ? terms_ : x_;
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    float* const out = target.data() + i * hidden_stride_;
    if (ranks_ != nullptr) std::fill_n(out, hidden, 0.0F);
    for (int64_t j = i * k; j < (i + 1) * k; ++j) {
      const float* const from = y + sort.place[static_cast<size_t>(j - m.first * k)] * hidden_stride_;
      const float weight = expert_weight_.data()[j];
      for (int64_t c = 0; c < hidden; ++c) out[c] += weight * from[c];
    }
  }
  if (ranks_ == nullptr) return;
  m.join();
  add_terms(m, nullptr);
}

}  // namespace mortise
