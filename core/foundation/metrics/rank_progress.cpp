// Keeps the stages of this process, and what the watch has heard of the other ranks.
#include "foundation/metrics/rank_progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "foundation/base/text.h"

namespace mortise {

namespace {

struct StageProgress {
  std::string stage;
  int64_t done = 0, total = 0;
};

struct Progress {
  std::mutex mutex;
  std::vector<StageProgress> own;
  std::vector<std::string> ranks;
};

Progress& progress() {
  static auto* all = new Progress;  // never destroyed: threads may tell while the program ends
  return *all;
}

// "12/64" behind "sampling=" in such a text.
std::optional<StageProgress> find_stage(std::string_view text, std::string_view stage) {
  for (const std::string_view item : split(text, ',')) {
    if (!item.starts_with(stage) || item.substr(stage.size(), 1) != "=") continue;
    const auto numbers = split(item.substr(stage.size() + 1), '/');
    if (numbers.size() != 2) continue;
    const auto done = parse_i64(numbers[0]), total = parse_i64(numbers[1]);
    if (done && total && *total > 0) return StageProgress{std::string(stage), *done, *total};
  }
  return std::nullopt;
}

}  // namespace

void note_step() {
  Progress& all = progress();
  const std::lock_guard lock(all.mutex);
  all.own.clear();
  for (std::string& rank : all.ranks) rank.clear();
}

void note_stage(std::string_view stage, int64_t done, int64_t total) {
  Progress& all = progress();
  const std::lock_guard lock(all.mutex);
  const auto place = std::ranges::find(all.own, stage, &StageProgress::stage);
  if (place == all.own.end())
    all.own.push_back({std::string(stage), done, total});
  else
    place->done = done, place->total = total;
}

std::string own_progress() {
  Progress& all = progress();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> items;
  for (const auto& [stage, done, total] : all.own) {
    if (done < total) items.push_back(fmt::format("{}={}/{}", stage, done, total));
  }
  return join(items, ",");
}

void note_ranks(std::vector<std::string> ranks) {
  Progress& all = progress();
  const std::lock_guard lock(all.mutex);
  all.ranks = std::move(ranks);
}

std::optional<SlowRank> slowest_rank(std::string_view stage, int64_t done, int64_t total) {
  Progress& all = progress();
  const std::lock_guard lock(all.mutex);
  if (all.ranks.size() < 2) return std::nullopt;
  SlowRank slowest{0, done, total};
  const auto part = [](int64_t some, int64_t of) { return static_cast<double>(some) / static_cast<double>(of); };
  for (size_t rank = 1; rank < all.ranks.size(); ++rank) {
    const auto other = find_stage(all.ranks[rank], stage);
    if (!other || (slowest.total > 0 && part(other->done, other->total) >= part(slowest.done, slowest.total))) continue;
    slowest = {static_cast<int>(rank), other->done, other->total};
  }
  return slowest;
}

}  // namespace mortise
