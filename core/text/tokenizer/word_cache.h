// Remembers the ids of words, with a size limit: a full shard is emptied. Each shard has its lock; a thread that finds
// a shard locked continues without it. Thread rule: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mortise {

class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 64;  // longer words are rare: not kept

  // Appends the ids of a word seen before; false if it is unknown.
  bool get(std::string_view word, std::vector<int64_t>& out) {
    Shard& shard = shard_of(word);
    const std::unique_lock lock(shard.mutex, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    const auto it = shard.words.find(word);
    if (it == shard.words.end()) return false;
    out.insert(out.end(), it->second.begin(), it->second.end());
    return true;
  }
  void put(std::string_view word, const std::vector<int32_t>& ids) {
    Shard& shard = shard_of(word);
    const std::unique_lock lock(shard.mutex, std::try_to_lock);
    if (!lock.owns_lock()) return;
    if (shard.words.size() >= kMaxWordsPerShard) shard.words.clear();
    shard.words.emplace(std::string(word), ids);
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  struct alignas(64) Shard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> words;
  };
  static constexpr size_t kNumShards = 64;
  static constexpr size_t kMaxWordsPerShard = 2048;

  Shard& shard_of(std::string_view word) {
    return shards_[std::hash<std::string_view>{}(word) >> 7 & (kNumShards - 1)];
  }
  std::array<Shard, kNumShards> shards_;
};

}  // namespace mortise
