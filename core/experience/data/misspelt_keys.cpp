// Compares unknown keys with known ones by edit distance, and collects the warnings.
#include "experience/data/misspelt_keys.h"

#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {

namespace {

// One slip in a short name, two in a long one; shorter names are too near to one another.
size_t most_slips(size_t length) { return length < 4 ? 0 : length < 6 ? 1 : 2; }

bool is_nearly(const std::string& key, const std::string& name) {
  const size_t most = most_slips(name.size());
  const size_t longer = std::max(key.size(), name.size()), shorter = std::min(key.size(), name.size());
  return longer - shorter <= most && edit_distance(to_lower_ascii(key), to_lower_ascii(name)) <= most;
}

}  // namespace

std::string misspelt_key(const Json& row, std::span<const std::string> known) {
  for (const auto& [key, value] : row.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;  // it exists, but is not what it should be
    const std::string& given = key;                              // a binding is not captured
    const auto meant = std::ranges::find_if(known, [&](const std::string& name) { return is_nearly(given, name); });
    if (meant != known.end()) return fmt::format("the row has {}: did you mean {}?", quote(key), quote(*meant));
  }
  return "";
}

const std::string* MisspeltKeys::meant_by(const std::string& key) {
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  const std::string* meant = nullptr;
  if (std::ranges::find(read_, key) == read_.end()) {
    const auto found = std::ranges::find_if(read_, [&](const std::string& name) { return is_nearly(key, name); });
    if (found != read_.end()) meant = &*found;
  }
  constexpr size_t kMostKeys = 10'000;  // rows whose keys are data would fill the memory
  if (known_.size() < kMostKeys) known_.emplace(key, meant);
  return meant;
}

void MisspeltKeys::see(const Json& row, int32_t file, int64_t line) {
  if (!row.is_object()) return;
  for (const auto& [key, value] : row.items()) {
    if (const auto name = std::ranges::find(read_, key); name != read_.end()) there_.insert(*name);
    const std::string* const meant = meant_by(key);
    if (meant == nullptr || row.contains(*meant)) continue;
    add({file, key}, {meant, line, 1});
  }
}

void MisspeltKeys::add(const std::pair<int32_t, std::string>& file_and_key, const Place& place) {
  const auto [entry, is_new] = found_.try_emplace(file_and_key, place);
  if (is_new) return;
  entry->second.first_line = std::min(entry->second.first_line, place.first_line);
  entry->second.num_rows += place.num_rows;
}

void MisspeltKeys::merge(const MisspeltKeys& other) {
  for (const auto& [file_and_key, place] : other.found_) add(file_and_key, place);
  there_.insert(other.there_.begin(), other.there_.end());
}

std::vector<std::string> MisspeltKeys::warnings(std::span<const std::string> files) const {
  std::vector<std::string> out;
  for (const auto& [file_and_key, place] : found_) {
    const auto& [file, key] = file_and_key;
    const std::string others =
        place.num_rows > 1 ? fmt::format(" (as have {} more rows of the file)", format_count(place.num_rows - 1)) : "";
    const std::string meant = quote(*place.meant);
    // If no row has it, the settings may be misspelt instead.
    const std::string next =
        there_.contains(*place.meant)
            ? fmt::format("; did you mean {}? Now it is a column of its own", meant)
            : fmt::format(", and no row has {}; correct the rows, or the setting that names it", meant);
    out.push_back(fmt::format("{}:{}: the row has {} and no {}{}{}", files[static_cast<size_t>(file)], place.first_line,
                              quote(key), meant, others, next));
  }
  return out;
}

}  // namespace mortise
