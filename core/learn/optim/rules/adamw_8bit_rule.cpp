// AdamW whose moments are stored in 8 bits per number (Dettmers et al., arXiv:2110.02861): both moments of a block of 256
// numbers are read, updated in float32 and written back to the nearest of 256 values times the block's largest absolute
// value. The step uses the moments before they are rounded. Judge: bitsandbytes.optim.AdamW8bit.
//
// Parameters with fewer than min_size numbers, and embeddings unless embeddings_too, have AdamW's moments in full, as
// in bitsandbytes and in transformers' Trainer. State: 2 bytes and 1/32 byte per number.
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sqrt.h>

#include <cmath>
#include <optional>
#include <utility>

#include "learn/optim/rules.h"
#include "learn/optim/rules/dynamic_map.h"
#include "learn/optim/rules/elementwise.h"

namespace mortise {

namespace {

struct AdamFactors {
  double lr = 0, weight_decay = 0, beta1 = 0, beta2 = 0, eps = 0, grad_factor = 1;
  double correction1 = 1, correction2_root = 1;
};

// A moment of one block.
struct QuantizedMoment {
  const DynamicMap& map;
  uint8_t* codes;
  float* scale;
  float numbers[kQuantizedBlock];

  void read(int64_t count) {
    for (int64_t i = 0; i < count; ++i) numbers[i] = map.values[codes[i]] * *scale;
  }
  void write(int64_t count) {
    float largest = 0.0F;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(numbers[i]));
    *scale = largest;
    const float inverse = largest > 0.0F ? 1.0F / largest : 0.0F;
    for (int64_t i = 0; i < count; ++i) codes[i] = map.nearest(std::clamp(numbers[i] * inverse, -1.0F, 1.0F));
  }
};

template <class T>
void step_block(T* p, const T* grad, int64_t count, QuantizedMoment& first, QuantizedMoment& second,
                const AdamFactors& f) {
  first.read(count);
  second.read(count);
  const auto b1 = static_cast<float>(f.beta1), c1 = static_cast<float>(1.0 - f.beta1);
  const auto b2 = static_cast<float>(f.beta2), c2 = static_cast<float>(1.0 - f.beta2);
  const auto root = static_cast<float>(f.correction2_root), eps = static_cast<float>(f.eps);
  const T keep = static_cast<T>(1.0 - f.lr * f.weight_decay), step = static_cast<T>(f.lr / f.correction1);
  for (int64_t i = 0; i < count; ++i) {
    const auto g = static_cast<float>(grad[i] * static_cast<T>(f.grad_factor));
    const float m = first.numbers[i] * b1 + c1 * g, v = second.numbers[i] * b2 + c2 * g * g;
    first.numbers[i] = m;
    second.numbers[i] = v;
    p[i] = p[i] * keep - step * static_cast<T>(m / (std::sqrt(v) / root + eps));
  }
  first.write(count);
  second.write(count);
}

template <class T>
void adamw_8bit_kernel(const StepPart& part, const at::Tensor& gradient, const AdamFactors& factors) {
  T* const p = numbers_of<T>(part.weights);
  const T* const grad = numbers_of<T>(gradient);
  auto* const codes1 = numbers_of<uint8_t>(part.state[0]);
  auto* const scales1 = numbers_of<float>(part.state[1]);
  auto* const codes2 = numbers_of<uint8_t>(part.state[2]);
  auto* const scales2 = numbers_of<float>(part.state[3]);
  for_elements(gradient.numel(), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kQuantizedBlock) {
      const int64_t block = at / kQuantizedBlock;
      QuantizedMoment first{signed_map(), codes1 + at, scales1 + block, {}};
      QuantizedMoment second{unsigned_map(), codes2 + at, scales2 + block, {}};
      step_block<T>(p + at, grad + at, std::min(kQuantizedBlock, end - at), first, second, factors);
    }
  });
}

// A map where the numbers lie.
struct MapTensors {
  at::Tensor values, midpoints;

  MapTensors(const DynamicMap& map, at::Device device)
      : values(on(device, map.values)), midpoints(on(device, map.midpoints)) {}
  template <class Numbers>
  static at::Tensor on(at::Device device, const Numbers& numbers) {
    const at::Tensor host = at::empty({static_cast<int64_t>(numbers.size())}, at::kFloat);
    std::copy(numbers.begin(), numbers.end(), host.mutable_data_ptr<float>());
    return host.to(device);
  }
};

// Blocks of one length, [blocks, length], by operators.
struct BlockOperators {
  const MapTensors& map;
  at::Tensor codes;   // a view of the state
  at::Tensor scales;  // [blocks, 1], too

  [[nodiscard]] at::Tensor read() const {
    return map.values.index_select(0, codes.flatten().to(at::kLong)).view_as(codes) * scales;
  }
  void write(const at::Tensor& numbers) const {
    const at::Tensor largest = at::abs(numbers).amax({1}, /*keepdim=*/true);
    scales.copy_(largest);
    const at::Tensor inverse = largest.reciprocal().masked_fill(largest <= 0.0, 0.0);
    codes.copy_(at::bucketize((numbers * inverse).clamp(-1.0, 1.0), map.midpoints));
  }
};

void step_by_operators(const at::Tensor& p, const at::Tensor& grad, const BlockOperators& first,
                       const BlockOperators& second, const AdamFactors& f) {
  const at::Tensor g = (grad * f.grad_factor).to(at::kFloat);
  const at::Tensor m = first.read() * f.beta1 + g * (1.0 - f.beta1);
  const at::Tensor v = second.read() * f.beta2 + g * (1.0 - f.beta2) * g;
  const at::Tensor step = (m / (at::sqrt(v) / f.correction2_root + f.eps)).to(p.scalar_type());
  p.mul_(1.0 - f.lr * f.weight_decay).sub_(step * (f.lr / f.correction1));
  first.write(m);
  second.write(v);
}

// Whole blocks in pieces, so that copies of a large matrix as float32 numbers do not lie in memory, then what is left.
void adamw_8bit_by_operators(const StepPart& part, const at::Tensor& gradient, const MapTensors& signs,
                             const MapTensors& squares, const AdamFactors& factors) {
  constexpr int64_t kPiece = int64_t{1} << 24;
  const int64_t size = gradient.numel();
  const at::Tensor p = part.weights.view(-1), grad = gradient.view(-1);
  const auto step = [&](int64_t begin, int64_t count, int64_t length) {
    const auto blocks = [&](const at::Tensor& all) { return all.view(-1).narrow(0, begin, count).view({-1, length}); };
    const auto state = [&](const MapTensors& map, size_t at) {
      return BlockOperators{map, blocks(part.state[at]),
                            part.state[at + 1].narrow(0, begin / kQuantizedBlock, count / length).unsqueeze(1)};
    };
    step_by_operators(blocks(p), blocks(grad), state(signs, 0), state(squares, 2), factors);
  };
  const int64_t whole = size / kQuantizedBlock * kQuantizedBlock;
  for (int64_t begin = 0; begin < whole; begin += kPiece) step(begin, std::min(kPiece, whole - begin), kQuantizedBlock);
  if (whole < size) step(whole, size - whole, size - whole);
}

class AdamW8BitRule : public UpdateRule {
 public:
  explicit AdamW8BitRule(const AdamW8BitOptions& options) : options_(options), full_(make_adamw(options.adamw)) {}

  [[nodiscard]] bool steps_numbers() const override { return false; }  // but blocks of them

  [[nodiscard]] std::vector<StateTensor> state_of(const OptimizedParameter& parameter) const override {
    if (!is_quantized(parameter)) return full_->state_of(parameter);
    const std::vector<int64_t> shape = parameter.tensor.sizes().vec();
    const std::vector<int64_t> blocks{(parameter.tensor.numel() + kQuantizedBlock - 1) / kQuantizedBlock};
    return {{"exp_avg_8bit", at::kByte, shape},
            {"exp_avg_absmax", at::kFloat, blocks, kQuantizedBlock},
            {"exp_avg_sq_8bit", at::kByte, shape},
            {"exp_avg_sq_absmax", at::kFloat, blocks, kQuantizedBlock}};
  }

  void step(std::span<StepPart> parts, int64_t update, double grad_factor) const override {
    std::vector<StepPart> full;
    std::optional<std::pair<MapTensors, MapTensors>> maps;
    AdamFactors factors;
    factors.beta1 = options_.adamw.beta1;
    factors.beta2 = options_.adamw.beta2;
    factors.eps = options_.adamw.eps;
    factors.grad_factor = grad_factor;
    factors.correction1 = 1.0 - std::pow(factors.beta1, static_cast<double>(update));
    factors.correction2_root = std::sqrt(1.0 - std::pow(factors.beta2, static_cast<double>(update)));
    for (const StepPart& part : parts) {
      if (!is_quantized(*part.parameter)) {
        full.push_back(part);
        continue;
      }
      factors.lr = part.lr;
      factors.weight_decay = part.weight_decay;
      const at::Tensor gradient = part.gradient.contiguous();
      if (!part.weights.is_cpu()) {
        const at::Device device = part.weights.device();
        if (!maps) maps.emplace(MapTensors(signed_map(), device), MapTensors(unsigned_map(), device));
        adamw_8bit_by_operators(part, gradient, maps->first, maps->second, factors);
        continue;
      }
      with_real(gradient, [&](auto zero) { adamw_8bit_kernel<decltype(zero)>(part, gradient, factors); });
    }
    if (!full.empty()) full_->step(full, update, grad_factor);
  }

 private:
  [[nodiscard]] bool is_quantized(const OptimizedParameter& parameter) const {
    if (parameter.tensor.numel() < options_.min_size) return false;
    return options_.embeddings_too || parameter.role != ParameterRole::kEmbedding;
  }

  AdamW8BitOptions options_;
  std::unique_ptr<const UpdateRule> full_;
};

}  // namespace

std::unique_ptr<const UpdateRule> make_adamw_8bit(const AdamW8BitOptions& options) {
  return std::make_unique<AdamW8BitRule>(options);
}

}  // namespace mortise
