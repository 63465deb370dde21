// Real groups of ranks over Gloo, each rank a thread of the test with a store in memory.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist/gloo/c10d_store.h"
#include "dist/gloo/gloo_communicator.h"
#include "dist/one_process.h"
#include "dist/watch/rank_watch.h"

namespace mortise::test {

inline std::unique_ptr<Communicator> member_of_group(const C10dStore& store, int rank, int size) {
  WatchOptions watch;
  watch.rank = rank;
  watch.size = size;
  watch.store_rank = -1;
  watch.processes.resize(static_cast<size_t>(size));
  watch.beat = std::chrono::milliseconds(50);
  watch.end_process = [](const Error& error) { ADD_FAILURE() << error.to_string(); };
  GlooOptions options;
  options.rank = rank;
  options.size = size;
  options.address = "127.0.0.1";
  auto ranks =
      gloo_communicator(std::make_unique<C10dStore>(store.handle()),
                        std::make_unique<RankWatch>(std::make_unique<C10dStore>(store.handle()), watch), options);
  if (ranks.ok()) return std::move(*ranks);
  ADD_FAILURE() << ranks.error().to_string();
  return nullptr;
}

// Runs the body on every rank of a group of this size. A group of one rank is a group too.
inline void in_real_group(int size, const std::function<void(Communicator&)>& body) {
  SCOPED_TRACE("ranks: " + std::to_string(size));
  const auto store = memory_store();
  ASSERT_TRUE(store->set(kVerdictKey, kNoVerdict).ok());
  for (int rank = 0; rank < size; ++rank) ASSERT_TRUE(store->set(state_key(rank), encode(RankState{})).ok());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto ranks = member_of_group(*store, rank, size);
      if (ranks == nullptr) return;
      body(*ranks);
      const Result<> left = ranks->leave();
      EXPECT_TRUE(left.ok()) << left.error().to_string();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The same, but one rank is the communicator of one process.
inline void in_group(int size, const std::function<void(Communicator&)>& body) {
  if (size == 1) return body(*one_process_communicator());
  in_real_group(size, body);
}

}  // namespace mortise::test
