// See text.h.
#include "foundation/base/text.h"

#include <fmt/core.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace mortise {
namespace {

template <class T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> candidates,
                                       size_t max_results) {
  if (name.size() > 256) return {};
  std::vector<std::pair<size_t, std::string>> found;
  const std::string wanted = to_lower_ascii(name);
  const size_t most = std::max<size_t>(2, name.size() / 3);
  for (const std::string& candidate : candidates) {
    if (candidate.size() > 256) continue;
    const std::string lower = to_lower_ascii(candidate);
    const bool contains = wanted.size() >= 3 && lower.size() >= 3 &&
                          (lower.find(wanted) != std::string::npos || wanted.find(lower) != std::string::npos);
    // The distance is at least the difference of the lengths.
    if (!contains && std::max(wanted.size(), lower.size()) - std::min(wanted.size(), lower.size()) > most) continue;
    const size_t distance = edit_distance(wanted, lower);
    const bool near = distance <= most && distance < std::max(wanted.size(), lower.size());
    if (near || contains) found.emplace_back(near ? distance : most + distance, candidate);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (auto& [distance, candidate] : found) {
    if (names.size() == max_results) break;
    if (names.empty() || names.back() != candidate) names.push_back(std::move(candidate));
  }
  return names;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const std::vector<std::string> names = nearest_names(name, candidates);
  if (names.empty()) return {};
  std::string text = "did you mean ";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += fmt::format("'{}'", names[i]);
  }
  return text + "?";
}

std::optional<int64_t> parse_i64(std::string_view text) { return parse_whole<int64_t>(text); }
std::optional<uint64_t> parse_u64(std::string_view text) { return parse_whole<uint64_t>(text); }
std::optional<double> parse_f64(std::string_view text) {
  const auto value = parse_whole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string format_f64(double value) {
  std::array<char, 32> out{};
  const auto [end, code] = std::to_chars(out.data(), out.data() + out.size(), value);
  return code == std::errc() ? std::string(out.data(), end) : "?";
}

std::string format_count(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t sign = value < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > sign + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string format_bytes(uint64_t bytes) {
  constexpr std::array<const char*, 7> kNames{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) value /= 1024, ++unit;
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kNames[unit]);
  return out.data();
}

std::optional<int64_t> parse_byte_size(std::string_view text) {
  constexpr std::pair<std::string_view, int64_t> kByteUnits[] = {{"KiB", int64_t{1} << 10},
                                                                 {"MiB", int64_t{1} << 20},
                                                                 {"GiB", int64_t{1} << 30},
                                                                 {"KB", 1000},
                                                                 {"MB", 1'000'000},
                                                                 {"GB", 1'000'000'000},
                                                                 {"B", 1}};
  int64_t factor = 1;
  for (const auto& [unit, bytes] : kByteUnits) {
    if (!text.ends_with(unit)) continue;
    text.remove_suffix(unit.size());
    factor = bytes;
    break;
  }
  const std::optional<int64_t> count = parse_i64(text);
  if (!count || *count < 0 || *count > INT64_MAX / factor) return std::nullopt;
  return *count * factor;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (true) {
    const size_t at = text.find(separator);
    pieces.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return pieces;
    text.remove_prefix(at + 1);
  }
}

std::string join(std::span<const std::string> pieces, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) text += separator;
    text += pieces[i];
  }
  return text;
}

std::string to_lower_ascii(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

}  // namespace mortise
