// See attention_choice.h.
#include "model/layers/attention_choice.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sin.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <optional>

namespace mortise {
namespace {

const AttentionChoices* chosen = nullptr;  // NOLINT: use_attention_choices()

constexpr int64_t kFewestKeys = 1024;  // most keys of the first class
constexpr int64_t kTrialTokens = 16384;
constexpr int64_t kMostCompletions = 16;
constexpr int kRounds = 5;
constexpr double kLeastGain = 1.05;       // so that a choice does not hang on a clock's noise
constexpr double kMostDifference = 0.02;  // relative; both round to bfloat16, which is 0.3 % with noise()

// Nothing: the call failed, and `reason` says why.
template <class Call>
auto computed(const Call& call, std::string& reason) -> std::optional<decltype(call())> {
  try {
    return call();
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  reason = reason.substr(0, reason.find('\n'));
  return std::nullopt;
}

bool have_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) {
    return x.view(at::kInt).equal(y.view(at::kInt));  // NaN has bits too
  });
}

// The largest relative difference of a tensor. Infinite: a number is not finite.
double difference(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  double largest = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const at::Tensor expected = want[i].to(at::kFloat);
    const double of = at::linalg_vector_norm(got[i].to(at::kFloat) - expected).item<double>(),
                 norm = at::linalg_vector_norm(expected).item<double>();
    const double relative = of / std::max(norm, std::numeric_limits<double>::min());
    if (!std::isfinite(relative)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, relative);
  }
  return largest;
}

// Nothing: both compute the same numbers.
std::optional<AttentionVerdict> verdict_of_numbers(const AttentionTrial& trial) {
  std::string reason;
  const auto first = computed(trial.cudnn, reason);
  const auto second = first ? computed(trial.cudnn, reason) : std::nullopt;
  if (!second) return AttentionVerdict{AttentionCode::kLibtorch, "cuDNN does not compute it: " + reason};
  if (!have_same_bits(*first, *second))
    return AttentionVerdict{AttentionCode::kLibtorch, "cuDNN gives other bits each time"};
  const auto want = computed(trial.libtorch, reason);
  if (!want) return AttentionVerdict{AttentionCode::kCudnn, "libtorch does not compute it: " + reason};
  const double by = difference(*first, *want);
  if (!std::isfinite(by))
    return AttentionVerdict{AttentionCode::kLibtorch, "a trial gives numbers that are not finite"};
  if (by > kMostDifference) {
    return AttentionVerdict{AttentionCode::kLibtorch,
                            fmt::format("cuDNN's numbers differ from libtorch's by {:.0f} %", 100.0 * by)};
  }
  return std::nullopt;
}

AttentionVerdict faster(const AttentionTrial& trial) {
  double libtorch = std::numeric_limits<double>::infinity(), cudnn = libtorch;
  for (int round = 0; round < kRounds; ++round) {
    libtorch = std::min(libtorch, trial.seconds([&] { trial.libtorch(); }));
    cudnn = std::min(cudnn, trial.seconds([&] { trial.cudnn(); }));
  }
  return {cudnn * kLeastGain < libtorch ? AttentionCode::kCudnn : AttentionCode::kLibtorch,
          fmt::format("cuDNN takes {:.3f} ms and libtorch {:.3f} ms", 1e3 * cudnn, 1e3 * libtorch)};
}

// Numbers between -1 and 1 that depend on nothing else. Smooth ones would cancel in long sums, so that roundings look large.
at::Tensor noise(at::IntArrayRef sizes, double step, at::Device device) {
  constexpr int64_t kPeriod = 1'048'573;  // a prime, so that no column of heads repeats
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  const at::TensorOptions numbers = at::TensorOptions().device(device).dtype(at::kDouble);
  const at::Tensor large = at::sin(at::arange(std::min(count, kPeriod), numbers) * step) * 43758.5453;
  const at::Tensor some = ((large - at::floor(large)) * 2.0 - 1.0).to(at::kFloat);
  return some.repeat({(count + kPeriod - 1) / kPeriod}).narrow(0, 0, count).reshape(sizes);
}

struct TrialInputs {
  at::Tensor q, k, v, d_out;

  TrialInputs(const AttentionShape& shape, int64_t queries, int64_t keys, at::Device device)
      : q(noise({queries, shape.num_heads, shape.head_dim}, 0.7, device)),
        k(noise({keys, shape.num_kv_heads, shape.head_dim}, 1.1, device)),
        v(noise({keys, shape.num_kv_heads, shape.head_dim}, 1.9, device)),
        d_out(noise({queries, shape.num_heads, shape.head_dim}, 2.3, device)) {}
};

at::Tensor attend_by(CudnnAttention& cudnn, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const SegmentLengths& lengths, const AttentionShape& shape) {
  const auto rounded = [](const at::Tensor& x) { return x.to(at::kBFloat16); };
  return cudnn_segment_attention(cudnn, rounded(q), rounded(k), rounded(v), lengths, shape).to(q.scalar_type());
}

SegmentLengths trial_lengths(int64_t longest) {
  const int64_t prompt = std::max<int64_t>(1, longest / 4), completion = std::max<int64_t>(1, longest - prompt);
  SegmentLengths lengths{{prompt}, {prompt}};
  const int64_t count = std::clamp<int64_t>(kTrialTokens / longest, 1, kMostCompletions);
  lengths.queries.resize(static_cast<size_t>(count) + 1, completion);
  lengths.keys.resize(static_cast<size_t>(count) + 1, prompt + completion);
  return lengths;
}

int64_t sum_of(const std::vector<int64_t>& lengths) {
  int64_t sum = 0;
  for (const int64_t length : lengths) sum += length;
  return sum;
}

}  // namespace

AttentionClass attention_class(const AttentionShape& shape, int64_t longest) {
  AttentionClass out{shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.window > 0 && shape.window < longest,
                     kFewestKeys};
  while (out.most_keys < longest) out.most_keys *= 4;
  return out;
}

std::string text_of(const AttentionClass& calls) {
  return fmt::format("{} query and {} key heads of {} numbers, up to {} keys{}", calls.heads, calls.kv_heads, calls.dim,
                     calls.most_keys, calls.has_window ? ", with a window" : "");
}

AttentionChoices AttentionChoices::everywhere(CudnnAttention& cudnn) {
  AttentionChoices out;
  out.cudnn_ = &cudnn;
  out.everywhere_ = true;
  return out;
}

bool AttentionChoices::need_cudnn() const {
  return std::ranges::any_of(codes_, [](const auto& entry) { return entry.second == AttentionCode::kCudnn; });
}

std::optional<AttentionCode> AttentionChoices::find(const AttentionClass& calls) const {
  const auto found = codes_.find(calls);
  return found == codes_.end() ? std::nullopt : std::optional(found->second);
}

CudnnAttention* AttentionChoices::cudnn_for(const AttentionShape& shape, const SegmentLengths& lengths) const {
  if (cudnn_ == nullptr || !shape.rounds || !has_cudnn_attention(shape)) return nullptr;
  if (everywhere_) return cudnn_;
  const AttentionClass calls = attention_class(shape, *std::ranges::max_element(lengths.keys));
  return find(calls) == AttentionCode::kCudnn ? cudnn_ : nullptr;
}

Result<> AttentionChoices::save_state(StateWriter& writer) const {
  std::vector<int64_t> numbers;
  for (const auto& [calls, code] : codes_) {
    numbers.insert(numbers.end(), {calls.heads, calls.kv_heads, calls.dim, calls.has_window ? 1 : 0, calls.most_keys,
                                   code == AttentionCode::kCudnn ? 1 : 0});
  }
  writer.put_text("setting", setting_);
  writer.put_vector("choices", numbers);
  return writer.status();
}

Result<> AttentionChoices::load_state(StateReader& reader) {
  constexpr size_t kNumbers = 6;  // as save_state() writes for each choice
  const std::string setting = TRY(reader.get_text("setting"));
  const std::vector<int64_t> numbers = TRY(reader.get_vector<int64_t>("choices"));
  if (numbers.size() % kNumbers != 0) {
    return Error{ErrorKind::kData, "attention/choices has a choice that is cut off", reader.where(),
                 "resume from another checkpoint"};
  }
  codes_.clear();
  if (setting != setting_) return {};
  for (size_t at = 0; at < numbers.size(); at += kNumbers) {
    const int64_t* const n = &numbers[at];
    set({n[0], n[1], n[2], n[3] != 0, n[4]}, n[5] != 0 ? AttentionCode::kCudnn : AttentionCode::kLibtorch);
  }
  return {};
}

void use_attention_choices(const AttentionChoices* choices) { chosen = choices; }

at::Tensor training_attention(const at::Tensor& q_NHD, const at::Tensor& k_MHD, const at::Tensor& v_MHD,
                              const SegmentLengths& lengths, const AttentionShape& shape) {
  CudnnAttention* const cudnn = chosen != nullptr ? chosen->cudnn_for(shape, lengths) : nullptr;
  return cudnn != nullptr ? attend_by(*cudnn, q_NHD, k_MHD, v_MHD, lengths, shape)
                          : segment_attention(q_NHD, k_MHD, v_MHD, lengths, shape);
}

AttentionVerdict try_attention(const AttentionTrial& trial) {
  if (const auto verdict = verdict_of_numbers(trial)) return *verdict;
  if (!trial.seconds) return {AttentionCode::kCudnn, "cuDNN computes it, and nothing was measured"};
  std::string reason;
  const auto verdict = computed([&] { return faster(trial); }, reason);
  return verdict.value_or(AttentionVerdict{AttentionCode::kLibtorch, "the measurement failed: " + reason});
}

AttentionTrial attention_trial(const AttentionShape& shape, int64_t longest, CudnnAttention& cudnn, at::Device device) {
  SegmentLengths lengths = trial_lengths(longest);
  send_begins(lengths, device);  // once, as a pass does
  const auto given =
      std::make_shared<std::optional<TrialInputs>>();  // made by a call, so that a full memory is a reason
  AttentionShape rounding = shape;
  rounding.rounds = true;
  const auto call = [=](const auto& attend) -> AttentionCall {
    return [=] {
      if (!*given) given->emplace(rounding, sum_of(lengths.queries), sum_of(lengths.keys), device);
      const at::AutoGradMode records(true);
      std::vector<at::Tensor> inputs{(*given)->q.detach(), (*given)->k.detach(), (*given)->v.detach()};
      for (at::Tensor& input : inputs) input.set_requires_grad(true);
      const at::Tensor out = attend(inputs[0], inputs[1], inputs[2], lengths, rounding);
      out.backward((*given)->d_out);
      return std::vector<at::Tensor>{out.detach(), inputs[0].grad(), inputs[1].grad(), inputs[2].grad()};
    };
  };
  const auto by_cudnn = [&cudnn](const auto&... all) { return attend_by(cudnn, all...); };
  return {call(segment_attention), call(by_cudnn), {}};
}

WorkTimer device_timer(at::Device device) {
  if (device.is_cpu()) {
    return [](const std::function<void()>& work) {
      const auto begin = std::chrono::steady_clock::now();
      work();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
  }
  return [device](const std::function<void()>& work) {
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT),
        end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    begin.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    return 1e-3 * begin.elapsedTime(end);
  };
}

}  // namespace mortise
