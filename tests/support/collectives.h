// What every communicator promises of tensors, on the CPU (Gloo) and on GPUs (NCCL): all ranks of a
// group call each function and give the device of their tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace mortise::test {

inline constexpr std::array<int64_t, 6> kCounts{0, 1, 3, 7, 1000, 65537};

// A different number for each rank and place, exact in float32.
inline double value_at(int rank, int64_t place) { return 3.0 * rank + static_cast<double>(place % 97) - 40.0; }

// The sums over so many ranks at `count` places from `first` on.
inline at::Tensor sums_of(int size, int64_t first, int64_t count) {
  at::Tensor sums = at::zeros({count}, at::kDouble);
  for (int rank = 0; rank < size; ++rank)
    for (int64_t i = 0; i < count; ++i) sums.data_ptr<double>()[i] += value_at(rank, first + i);
  return sums;
}

inline at::TensorOptions place_of(at::ScalarType type, const at::Device& device) {
  return at::TensorOptions().dtype(type).device(device);
}

inline at::Tensor values_of(int rank, int64_t count, at::ScalarType type, const at::Device& device) {
  const at::Tensor tensor = at::empty({count}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) tensor.data_ptr<double>()[i] = value_at(rank, i);
  return tensor.to(place_of(type, device));
}

inline at::Tensor doubles_on_host(const at::Tensor& tensor) { return tensor.to(place_of(at::kDouble, at::kCPU)); }

inline void expect_sums_in_every_type_and_size(Communicator& ranks, const at::Device& device) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
    for (const int64_t count : kCounts) {
      const at::Tensor tensor = values_of(ranks.rank(), count, type, device);
      const auto pending_tensor = tensor.clone();
      auto pending = ranks.start_all_reduce_sum(pending_tensor, "gradients");
      ASSERT_TRUE(pending.ok()) << pending.error().to_string();
      ASSERT_TRUE(ranks.all_reduce_sum(tensor, "gradients").ok());
      ASSERT_TRUE((*pending)->wait().ok());
      const at::Tensor expected = sums_of(ranks.size(), 0, count);
      ASSERT_TRUE(doubles_on_host(tensor).equal(expected)) << type << " " << count;
      ASSERT_TRUE(doubles_on_host(pending_tensor).equal(expected)) << type << " " << count;
    }
  }
}

inline void expect_buckets_in_any_order_of_waiting(Communicator& ranks, const at::Device& device) {
  std::vector<at::Tensor> buckets;
  std::vector<std::unique_ptr<PendingCollective>> pending;
  for (int bucket = 0; bucket < 40; ++bucket) {
    buckets.push_back(at::full({1000 + bucket}, bucket + 1.0, place_of(at::kDouble, device)));
    pending.push_back(*ranks.start_all_reduce_sum(buckets.back(), "gradients"));
  }
  std::reverse(pending.begin(), pending.end());
  for (const auto& one : pending) ASSERT_TRUE(one->wait().ok());
  for (int bucket = 0; bucket < 40; ++bucket)
    EXPECT_EQ(buckets[static_cast<size_t>(bucket)].sum().item<double>(),
              (1000.0 + bucket) * (bucket + 1) * ranks.size());
}

inline void expect_the_same_bits_on_every_rank(Communicator& ranks, const at::Device& device) {
  const at::Tensor numbers = at::empty({4099}, at::kFloat);
  for (int64_t i = 0; i < numbers.numel(); ++i)
    numbers.data_ptr<float>()[i] = 1.0F / static_cast<float>(1 + ranks.rank() * 13 + i * 7);
  const at::Tensor tensor = numbers.to(device);
  ASSERT_TRUE(ranks.all_reduce_sum(tensor, "gradients").ok());
  const at::Tensor got = tensor.to(at::kCPU);
  const std::string bytes(static_cast<const char*>(got.data_ptr()), got.nbytes());
  const auto all = ranks.exchange(bytes, "check");
  ASSERT_TRUE(all.ok());
  for (const std::string& other : *all) EXPECT_TRUE(other == bytes);
}

inline void expect_each_rank_gets_its_part_of_a_sum(Communicator& ranks, const at::Device& device) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
    for (const int64_t count : kCounts) {
      const at::Tensor input = values_of(ranks.rank(), count * ranks.size(), type, device);
      const at::Tensor output = at::zeros({count}, place_of(type, device));
      ASSERT_TRUE(ranks.reduce_scatter_sum(input, output, "gradients").ok());
      ASSERT_TRUE(doubles_on_host(output).equal(sums_of(ranks.size(), ranks.rank() * count, count)))
          << type << " " << count;
    }
  }
}

inline void expect_gather_and_broadcast_move_every_type(Communicator& ranks, const at::Device& device) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte, at::kBool}) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{4096}}) {
      const at::Tensor input = at::full({count}, ranks.rank() % 2, place_of(type, device));
      const at::Tensor all = at::zeros({ranks.size(), count}, place_of(type, device));
      ASSERT_TRUE(ranks.all_gather(input, all, "weights").ok());
      for (int rank = 0; rank < ranks.size(); ++rank)
        ASSERT_EQ(all[rank].to(at::kDouble).sum().item<double>(), static_cast<double>(rank % 2 * count)) << type;
      for (int root = 0; root < ranks.size(); ++root) {
        const at::Tensor tensor = at::full({count}, ranks.rank() == root ? 1 : 0, place_of(type, device));
        ASSERT_TRUE(ranks.broadcast(tensor, root, "weights").ok());
        ASSERT_EQ(tensor.to(at::kDouble).sum().item<double>(), static_cast<double>(count)) << type;
      }
    }
  }
}

// Rank a has a * 10 + b numbers for b; some ranks have nothing.
inline void expect_all_to_all_moves_parts_of_any_size(Communicator& ranks, const at::Device& device) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
    for (const int64_t scale : {0, 1, 1000}) {
      const auto count = [&](int from, int to) { return from % 2 == 0 ? scale * (from * 10 + to) : 0; };
      std::vector<int64_t> sent, received;
      std::vector<at::Tensor> parts, expected;
      for (int other = 0; other < ranks.size(); ++other) {
        sent.push_back(count(ranks.rank(), other));
        received.push_back(count(other, ranks.rank()));
        parts.push_back(at::full({sent.back()}, ranks.rank() * 10 + other, place_of(type, device)));
        expected.push_back(at::full({received.back()}, other * 10 + ranks.rank(), place_of(type, device)));
      }
      const at::Tensor output = at::zeros_like(at::cat(expected)), later = at::zeros_like(output);
      auto pending = ranks.start_all_to_all(at::cat(parts), sent, later, received, "gradients");
      ASSERT_TRUE(pending.ok()) << pending.error().to_string();
      const Result<> moved = ranks.all_to_all(at::cat(parts), sent, output, received, "gradients");
      ASSERT_TRUE(moved.ok()) << moved.error().to_string();
      EXPECT_TRUE(output.equal(at::cat(expected))) << type << " " << scale;
      ASSERT_TRUE((*pending)->wait().ok());
      EXPECT_TRUE((*pending)->is_done());
      EXPECT_TRUE(later.equal(at::cat(expected))) << type << " " << scale;
    }
  }
}

inline void expect_numbers_around_a_ring(Communicator& ranks, const at::Device& device) {
  if (ranks.size() == 1) return;
  const int next = (ranks.rank() + 1) % ranks.size();
  const int before = (ranks.rank() + ranks.size() - 1) % ranks.size();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong}) {
    const at::Tensor mine = at::full({1001}, ranks.rank(), place_of(type, device));
    const at::Tensor got = at::zeros({1001}, place_of(type, device));
    if (ranks.rank() % 2 == 0) {
      ASSERT_TRUE(ranks.send(mine, next, "ring").ok());
      ASSERT_TRUE(ranks.recv(got, before, "ring").ok());
    } else {
      ASSERT_TRUE(ranks.recv(got, before, "ring").ok());
      ASSERT_TRUE(ranks.send(mine, next, "ring").ok());
    }
    EXPECT_TRUE(got.to(at::kDouble).eq(before).all().item<bool>());
  }
}

}  // namespace mortise::test
