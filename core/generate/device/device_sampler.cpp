// See device_sampler.h.
#include "generate/device/device_sampler.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace mortise {
namespace {

constexpr int64_t kHostLogitBytes = int64_t{64} << 20;     // logits of a block of rows on the host
constexpr int64_t kDeviceLogitBytes = int64_t{512} << 20;  // the same on the device

MortiseCudaDraw draw_of(const SamplingParams& params, double uniform) {
  MortiseCudaDraw out{uniform, params.top_p, params.inverse_temperature(), static_cast<float>(params.min_p), 0, 0};
  out.top_k = static_cast<int32_t>(std::clamp<int64_t>(params.top_k, 0, INT32_MAX));
  out.greedy = params.greedy() ? 1 : 0;
  return out;
}

}  // namespace

double DeviceSampler::uniform_of(const RunningSample& sample, int64_t num_later) const {
  RngKey key = key_of(sample, purpose_);
  key.token += static_cast<uint32_t>(num_later);
  return unit_double(random_u64(key));
}

bool DeviceSampler::draws_on_device(const RunningSample& sample) const {
  if (kernels_ == nullptr) return false;
  const GenerateRequest& request = sample.group->request;
  const SamplingParams& params = request.sampling;
  return !params.penalises() && !params.bars() && params.typical_p >= 1.0 && request.num_top_log_probs == 0;
}

void DeviceSampler::draw_on_host(const at::Tensor& logits_NV, std::span<const DeviceDraw> rows) const {
  const at::Tensor logits = logits_NV.to(at::TensorOptions().device(at::kCPU).dtype(at::kFloat)).contiguous();
  const float* const data = logits.const_data_ptr<float>();
  const int64_t vocab = logits.size(1);
  at::parallel_for(0, logits.size(0), 1, [&](int64_t from, int64_t to) {
    for (int64_t r = from; r < to; ++r) {
      RunningSample& sample = *rows[static_cast<size_t>(r)].sample;
      const GenerateRequest& request = sample.group->request;
      const std::span<const float> row(data + r * vocab, static_cast<size_t>(vocab));
      *rows[static_cast<size_t>(r)].out =
          sample_plain(row, {&request.sampling, sample.history.edits(), uniform_of(sample)});
      append_top_log_probs_plain(row, request.sampling, request.num_top_log_probs, sample.sequence.top);
    }
  });
}

// The drawn tokens, as bytes where the logits are.
at::Tensor DeviceSampler::start_draws(const at::Tensor& logits_NV, std::span<const RunningSample* const> samples,
                                      int64_t num_later) const {
  const at::Tensor logits = logits_NV.contiguous();
  const at::Tensor host = at::empty({logits.size(0), static_cast<int64_t>(sizeof(MortiseCudaDraw))}, at::kByte);
  auto* const draws = static_cast<MortiseCudaDraw*>(host.mutable_data_ptr());
  for (size_t i = 0; i < samples.size(); ++i)
    draws[i] = draw_of(samples[i]->group->request.sampling, uniform_of(*samples[i], num_later));
  const at::Tensor placed = sent_to(logits.device(), host);
  at::Tensor drawn = at::empty({logits.size(0), static_cast<int64_t>(sizeof(MortiseCudaDrawn))}, placed.options());
  check_started(kernels_->sample(logits.const_data_ptr<float>(), logits.size(0), logits.size(1),
                                 static_cast<int32_t>(logits.size(1)),
                                 static_cast<const MortiseCudaDraw*>(placed.const_data_ptr()),
                                 static_cast<MortiseCudaDrawn*>(drawn.mutable_data_ptr()), nullptr),
                "sample");
  return drawn;
}

StartedDraws DeviceSampler::start(const at::Tensor& hidden_NH, std::span<const RunningSample* const> samples,
                                  int64_t num_later) const {
  const int64_t block = std::max<int64_t>(1, kDeviceLogitBytes / (model_.config().vocab_size * 4));
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < hidden_NH.size(0); begin += block) {
    const int64_t count = std::min(block, hidden_NH.size(0) - begin);
    parts.push_back(start_draws(head_logits(hidden_NH.narrow(0, begin, count), model_.head()),
                                samples.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), num_later));
  }
  StartedDraws out;
  out.drawn = at::cat(parts, 0);
  if (out.drawn.is_cpu()) {
    out.host = out.drawn;
    return out;
  }
  const c10::Device device = out.drawn.device();
  out.host = at::empty(out.drawn.sizes(), at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  out.host.copy_(out.drawn, /*non_blocking=*/true);
  out.copied.emplace(device.type());
  out.copied->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return out;
}

std::vector<SampledToken> DeviceSampler::finish(StartedDraws& draws) {
  std::vector<SampledToken> out;
  if (!draws.host.defined()) return out;
  if (draws.copied) draws.copied->synchronize();
  const auto* const tokens = static_cast<const MortiseCudaDrawn*>(draws.host.const_data_ptr());
  for (int64_t i = 0; i < draws.host.size(0); ++i)
    out.push_back({tokens[i].id, tokens[i].log_prob, tokens[i].filtered_log_prob});
  return out;
}

void DeviceSampler::run(const at::Tensor& hidden_NH, std::span<const DeviceDraw> rows) const {
  const int64_t row_bytes = model_.config().vocab_size * 4, num_rows = hidden_NH.size(0);
  const int64_t block = std::max<int64_t>(1, (kernels_ == nullptr ? kHostLogitBytes : kDeviceLogitBytes) / row_bytes);
  std::vector<DeviceDraw> on_device;
  std::vector<at::Tensor> drawn;  // their tokens
  for (int64_t begin = 0; begin < num_rows; begin += block) {
    const int64_t count = std::min(block, num_rows - begin);
    const at::Tensor logits = head_logits(hidden_NH.narrow(0, begin, count), model_.head());
    std::vector<int64_t> places[2];  // on the host, on the device
    std::vector<DeviceDraw> own[2];
    for (int64_t i = 0; i < count; ++i) {
      const DeviceDraw& row = rows[static_cast<size_t>(begin + i)];
      const size_t side = draws_on_device(*row.sample) ? 1 : 0;
      places[side].push_back(i);
      own[side].push_back(row);
    }
    const auto part = [&](size_t side) {
      if (static_cast<int64_t>(places[side].size()) == count) return logits;
      return logits.index_select(0, sent_to(logits.device(), at::tensor(places[side], at::kLong)));
    };
    std::vector<const RunningSample*> samples;
    for (const DeviceDraw& row : own[1]) samples.push_back(row.sample);
    if (!samples.empty()) drawn.push_back(start_draws(part(1), samples, /*num_later=*/0));
    if (!own[0].empty()) draw_on_host(part(0), own[0]);
    on_device.insert(on_device.end(), own[1].begin(), own[1].end());
  }
  if (drawn.empty()) return;
  StartedDraws all;
  all.host = at::cat(drawn, 0).to(at::kCPU).contiguous();
  const std::vector<SampledToken> tokens = finish(all);
  for (size_t i = 0; i < on_device.size(); ++i) *on_device[i].out = tokens[i];
}

}  // namespace mortise
