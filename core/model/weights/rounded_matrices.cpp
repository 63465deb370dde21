// See rounded_matrices.h.
#include "model/weights/rounded_matrices.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "model/tensor/compute_team.h"
#include "model/tensor/philox_operators.h"
#include "model/tensor/storage_memory.h"

namespace mortise {
namespace {

constexpr int64_t kRandomNumbers = 64;  // 16 bits each: what eight blocks of Philox give

std::array<at::Tensor*, 6> tensors_of(LayerMatrices& matrices) {
  return {
      &matrices.qkv_QH,         &matrices.o_HQ, &matrices.gate_up_2IH, &matrices.down_HI, &matrices.expert_gate_up_E2IH,
      &matrices.expert_down_EHI};
}

// The masters of a layer, whether there are copies or not.
LayerMatrices masters_of(const DecoderWeights& weights, size_t layer) {
  DecoderWeights alone;
  alone.layers.push_back(weights.layers[layer]);
  return alone.matrices(0);
}

// visit(number of the matrix in its layer, master, copy)
template <class Visit>
void visit_matrices(const DecoderWeights& weights, size_t layer, const Visit& visit) {
  LayerMatrices masters = masters_of(weights, layer), copies = weights.rounded[layer];
  const auto from = tensors_of(masters), to = tensors_of(copies);
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i]->defined()) visit(static_cast<uint32_t>(i), *from[i], *to[i]);
  }
}

// The bits below those of bfloat16 carry into them with the probability of their share. Infinities and NaN stay.
c10::BFloat16 rounded_up_or_down(float x, uint32_t random) {
  if (!std::isfinite(x)) return c10::BFloat16(x);
  const uint32_t bits = std::bit_cast<uint32_t>(x) + (random & 0xFFFFU);
  return {static_cast<uint16_t>(bits >> 16U), c10::BFloat16::from_bits()};
}

// `first_place`: of the first number in its matrix.
void round_numbers(const float* from, c10::BFloat16* to, int64_t count, PhiloxCounter counter, const PhiloxKey& key,
                   int64_t first_place = 0) {
  const int64_t first_group = first_place / kRandomNumbers, last_place = first_place + count;
  const int64_t num_groups = (last_place + kRandomNumbers - 1) / kRandomNumbers - first_group;
  compute_ranges(num_groups, 256, [&](int64_t begin, int64_t end) {
    std::array<uint32_t, kRandomNumbers / 2> words{};
    for (int64_t group = first_group + begin; group < first_group + end; ++group) {
      const auto block = static_cast<uint64_t>(group) * 8;
      philox_eight_blocks(
          words, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32U), counter[2], counter[3]}, key);
      const int64_t first = group * kRandomNumbers, last = std::min(last_place, first + kRandomNumbers);
      for (int64_t i = std::max(first, first_place); i < last; ++i) {
        const uint32_t word = words[static_cast<size_t>((i - first) / 2)];
        const int64_t at = i - first_place;
        to[at] = rounded_up_or_down(from[at], (i - first) % 2 == 0 ? word : word >> 16U);
      }
    }
  });
}

at::Tensor rounded_by_operators(const at::Tensor& from, PhiloxCounter counter, const PhiloxKey& key, int64_t first) {
  const int64_t skipped = first % kRandomNumbers;
  const int64_t num_groups = (skipped + from.numel() + kRandomNumbers - 1) / kRandomNumbers;
  const at::TensorOptions whole = from.options().dtype(at::kLong);
  const at::Tensor block = at::arange(first / kRandomNumbers * 8, (first / kRandomNumbers + num_groups) * 8, whole);
  const auto number = [&](uint32_t value) { return at::full({1}, static_cast<int64_t>(value), whole); };
  const at::Tensor words = philox_eight_words(
      {block.__and__(0xFFFFFFFF), block.__rshift__(32), number(counter[2]), number(counter[3])}, key);
  const at::Tensor random = at::stack({words.__and__(0xFFFF), words.__rshift__(16)}, -1).reshape({-1});
  const at::Tensor bits =
      from.view(at::kInt).to(at::kLong).__and__(0xFFFFFFFF) + random.narrow(0, skipped, from.numel());
  const at::Tensor carried = bits.__rshift__(16).to(at::kShort).view(at::kBFloat16);
  return at::where(at::isfinite(from), carried, from.to(at::kBFloat16));
}

}  // namespace

void round_by_operators(const at::Tensor& from, const at::Tensor& to, PhiloxCounter counter, const PhiloxKey& key,
                        int64_t most, int64_t first) {
  const at::Tensor numbers = from.view({-1}), copies = to.view({-1});
  for (int64_t begin = 0; begin < numbers.numel(); begin += most) {
    const int64_t count = std::min(most, numbers.numel() - begin);
    copies.narrow(0, begin, count)
        .copy_(rounded_by_operators(numbers.narrow(0, begin, count), counter, key, first + begin));
  }
}

void allocate_rounded(DecoderWeights& weights) {
  std::vector<LayerMatrices> copies;
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    LayerMatrices& copy = copies.emplace_back(masters_of(weights, layer));
    for (at::Tensor* tensor : tensors_of(copy)) {
      if (tensor->defined()) *tensor = empty_alike(*tensor, tensor->options().dtype(at::kBFloat16));
    }
  }
  weights.rounded = std::move(copies);
}

std::vector<at::Tensor> copies_of_layer(const DecoderWeights& weights, size_t layer) {
  std::vector<at::Tensor> out;
  visit_matrices(weights, layer, [&](uint32_t, const at::Tensor&, const at::Tensor& copy) { out.push_back(copy); });
  return out;
}

std::vector<at::Tensor> masters_of_layer(const DecoderWeights& weights, size_t layer) {
  std::vector<at::Tensor> out;
  visit_matrices(weights, layer, [&](uint32_t, const at::Tensor& master, const at::Tensor&) { out.push_back(master); });
  return out;
}

MasterCopies copies_by_master(const DecoderWeights& weights) {
  MasterCopies out;
  for (size_t layer = 0; layer < weights.rounded.size(); ++layer) {
    visit_matrices(weights, layer, [&](uint32_t, const at::Tensor& master, const at::Tensor& copy) {
      out[master.storage().unsafeGetStorageImpl()] = copy;
    });
  }
  return out;
}

int64_t rounded_numbers(const DecoderWeights& weights) {
  int64_t sum = 0;
  for (size_t layer = 0; layer < weights.rounded.size(); ++layer) {
    visit_matrices(weights, layer, [&](uint32_t, const at::Tensor&, const at::Tensor& copy) { sum += copy.numel(); });
  }
  return sum;
}

void free_rounded(const DecoderWeights& weights, size_t layer) {
  visit_matrices(weights, layer,
                 [](uint32_t, const at::Tensor&, const at::Tensor& copy) { free_memory(copy.storage()); });
}

void allocate_rounded(const DecoderWeights& weights, size_t layer) {
  visit_matrices(weights, layer,
                 [](uint32_t, const at::Tensor&, const at::Tensor& copy) { allocate_memory(copy.storage()); });
}

namespace {

// On a device both may lie in files.
void round_in_files(const Offload& files, const at::Tensor& master, const at::Tensor& copy) {
  const at::Tensor from = files.on_device(master), to = files.on_device(copy);
  if (!has_memory(from) || !has_memory(to)) return;
  to.variable_data().copy_(from);
  files.put_back(copy, to);
}

}  // namespace

void round_to_nearest(const DecoderWeights& weights, size_t layer, const Offload* offload) {
  const at::NoGradGuard no_grad;
  visit_matrices(weights, layer, [&](uint32_t, const at::Tensor& master, const at::Tensor& copy) {
    if (offload != nullptr && !master.is_cpu()) return round_in_files(*offload, master, copy);
    if (!has_memory(master) || !has_memory(copy)) return;
    copy.variable_data().copy_(master);
    if (offload != nullptr) offload->release(master);
  });
}

void round_to_nearest(const DecoderWeights& weights, const Offload* offload) {
  for (size_t layer = 0; layer < weights.rounded.size(); ++layer) round_to_nearest(weights, layer, offload);
  if (offload != nullptr) offload->finish();
}

Result<> offload_masters(const DecoderWeights& weights, Offload& offload) {
  Result<> done;
  for (size_t layer = 0; layer < weights.rounded.size(); ++layer) {
    visit_matrices(weights, layer, [&](uint32_t, const at::Tensor& master, const at::Tensor&) {
      if (done.ok()) done = offload.take(master);
    });
  }
  return done;
}

void copy_rounded(const DecoderWeights& from, const DecoderWeights& to, size_t layer) {
  const at::NoGradGuard no_grad;
  LayerMatrices source = from.rounded[layer], target = to.rounded[layer];
  const auto numbers = tensors_of(source), places = tensors_of(target);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i]->defined()) places[i]->copy_(*numbers[i]);
  }
}

void free_masters(const DecoderWeights& weights, size_t layer) {
  visit_matrices(weights, layer,
                 [](uint32_t, const at::Tensor& master, const at::Tensor&) { free_memory(master.storage()); });
}

void widen_masters(const DecoderWeights& weights, size_t layer) {
  const at::NoGradGuard no_grad;
  visit_matrices(weights, layer, [](uint32_t, const at::Tensor& master, const at::Tensor& copy) {
    allocate_memory(master.storage());
    master.variable_data().copy_(copy);  // the same weights: no new version
  });
}

void round_stochastically(const DecoderWeights& weights, size_t layer, const PhiloxKey& key) {
  visit_matrices(weights, layer, [&](uint32_t matrix, const at::Tensor& master, const at::Tensor& copy) {
    const PhiloxCounter counter{0, 0, matrix, static_cast<uint32_t>(layer)};
    if (!master.is_cpu()) return round_by_operators(master, copy, counter, key);
    round_numbers(master.const_data_ptr<float>(), copy.mutable_data_ptr<c10::BFloat16>(), master.numel(), counter, key);
  });
}

void round_piece(const DecoderWeights& weights, const at::Tensor& parameter, int64_t begin, const at::Tensor& from,
                 const at::Tensor& to, const PhiloxKey& key) {
  const auto layer = static_cast<size_t>(rounded_layer(weights, parameter));
  const int64_t first = parameter.storage_offset() + begin;
  visit_matrices(weights, layer, [&](uint32_t matrix, const at::Tensor& master, const at::Tensor&) {
    if (!master.storage().is_alias_of(parameter.storage())) return;
    const PhiloxCounter counter{0, 0, matrix, static_cast<uint32_t>(layer)};
    if (!from.is_cpu()) return round_by_operators(from, to, counter, key, int64_t{1} << 24, first);
    round_numbers(from.const_data_ptr<float>(), to.mutable_data_ptr<c10::BFloat16>(), from.numel(), counter, key,
                  first);
  });
}

at::Tensor rounded_slice(const DecoderWeights& weights, const at::Tensor& parameter) {
  at::Tensor out;
  const auto layer = static_cast<size_t>(rounded_layer(weights, parameter));
  visit_matrices(weights, layer, [&](uint32_t, const at::Tensor& master, const at::Tensor& copy) {
    if (!master.storage().is_alias_of(parameter.storage())) return;
    out = copy.view({-1}).narrow(0, parameter.storage_offset(), parameter.numel()).view(parameter.sizes());
  });
  return out;
}

int64_t rounded_layer(const DecoderWeights& weights, const at::Tensor& parameter) {
  for (size_t layer = 0; layer < weights.rounded.size(); ++layer) {
    bool is_here = false;
    visit_matrices(weights, layer, [&](uint32_t, const at::Tensor& master, const at::Tensor&) {
      is_here = is_here || master.storage().is_alias_of(parameter.storage());
    });
    if (is_here) return static_cast<int64_t>(layer);
  }
  return -1;
}

}  // namespace mortise
