// See device_history.h.
#include "generate/device/device_history.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace mortise {
namespace {

at::Tensor int32_tensor(const std::vector<int32_t>& numbers, const c10::Device& device) {
  return sent_to(device, at::tensor(numbers, at::kInt));
}

}  // namespace

DeviceHistory::DeviceHistory(RunningSample& sample, int64_t vocab_size, const c10::Device& device) {
  const Sampling& params = sample.group->request.sampling;
  const TokenHistory& history = sample.history;
  if (params.penalises()) {
    seen_V_ = at::zeros({vocab_size}, at::TensorOptions().device(device).dtype(at::kInt));
    std::vector<int64_t> ids;
    std::vector<int32_t> counts;
    for (const SeenToken& seen : sample.history.edits().seen) {
      ids.push_back(seen.id);
      counts.push_back(static_cast<int32_t>(seen.count + 1));
    }
    if (!ids.empty()) seen_V_.index_copy_(0, sent_to(device, at::tensor(ids, at::kLong)), int32_tensor(counts, device));
  }
  std::vector<int32_t> lists(history.tail_size() - history.tail().size(), -1);
  for (const int64_t id : history.tail()) lists.push_back(static_cast<int32_t>(id));
  tail_size_ = static_cast<int32_t>(lists.size());
  if (params.ignore_eos || params.min_new_tokens > 0) {
    for (const int64_t id : params.stop_ids) lists.push_back(static_cast<int32_t>(id));
    num_ends_ = static_cast<int32_t>(params.stop_ids.size());
  }
  for (const std::vector<int64_t>& word : params.bad_words) {
    lists.push_back(static_cast<int32_t>(word.size()));
    for (const int64_t id : word) lists.push_back(static_cast<int32_t>(id));
  }
  num_words_ = static_cast<int32_t>(params.bad_words.size());
  if (!lists.empty()) lists_ = int32_tensor(lists, device);
}

MortiseCudaEdits DeviceHistory::edits(const Sampling& params, int64_t position) const {
  MortiseCudaEdits out{};
  if (seen_V_.defined()) out.seen = seen_V_.mutable_data_ptr<int32_t>();
  if (lists_.defined()) {
    out.tail = lists_.mutable_data_ptr<int32_t>();
    out.ends = out.tail + tail_size_;
    out.words = out.ends + num_ends_;
  }
  out.repetition = params.repetition_penalty;
  out.presence = params.presence_penalty;
  out.frequency = params.frequency_penalty;
  out.tail_size = tail_size_;
  out.num_words = num_words_;
  out.num_ends = params.barred_ends(position).empty() ? 0 : num_ends_;
  return out;
}

std::shared_ptr<const DeviceHistory> device_history(RunningSample& sample, int64_t vocab_size,
                                                    const c10::Device& device) {
  const Sampling& params = sample.group->request.sampling;
  if (!params.penalises() && !params.bars()) return nullptr;
  return std::make_shared<DeviceHistory>(sample, vocab_size, device);
}

}  // namespace mortise
