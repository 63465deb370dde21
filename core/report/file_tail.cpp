// See file_tail.h.
#include "report/file_tail.h"

#include <algorithm>

#include "foundation/base/text.h"
#include "foundation/formats/sha256.h"

namespace mortise {
namespace {

constexpr size_t kMarkDigits = 16, kMarkedBytes = 4096;

// Begins with the line before `end`, which is behind a "\n".
size_t line_before(std::string_view text, size_t end) {
  const size_t before = end < 2 ? text.npos : text.rfind('\n', end - 2);
  return before == text.npos ? 0 : before + 1;
}

}  // namespace

TailPlace place_behind(uint64_t offset, std::string_view line) {
  const std::string_view last = line.substr(line.size() - std::min(line.size(), kMarkedBytes));
  return {offset + line.size() + 1, sha256_hex(last).substr(0, kMarkDigits)};
}

TailPlace place_behind_lines(std::string_view text) {
  const size_t end = text.rfind('\n');
  if (end == text.npos) return {};
  const size_t begin = line_before(text, end + 1);
  return place_behind(begin, text.substr(begin, end - begin));
}

bool FileTail::is_of(std::string_view file) const {
  if (place_.offset == 0) return true;
  if (place_.offset > file.size() || file[place_.offset - 1] != '\n') return false;
  return place_behind_lines(file.substr(0, place_.offset)) == place_;
}

std::optional<std::vector<std::string>> FileTail::read() {
  const auto info = env_->info(path_);
  if (!info.ok()) return std::vector<std::string>();
  const bool is_same = info->size_bytes == seen_.size_bytes && info->modified_ns == seen_.modified_ns;
  if (is_checked_ && is_same && info->size_bytes == place_.offset) return std::vector<std::string>();
  const auto mapped = env_->map_file(path_);
  if (!mapped.ok()) return std::vector<std::string>();
  const std::string_view file = mapped->text();
  seen_ = *info;
  is_checked_ = true;
  if (!is_of(file)) {
    place_ = {};
    return std::nullopt;
  }
  std::string_view news = file.substr(place_.offset);
  size_t end = news.substr(0, kMostBytes).rfind('\n');
  if (end == news.npos) end = news.find('\n');
  if (end == news.npos) return std::vector<std::string>();
  news = news.substr(0, end);
  std::vector<std::string> lines;
  for (const std::string_view line : split(news, '\n')) lines.emplace_back(line);
  place_ = place_behind(place_.offset + news.size() - lines.back().size(), lines.back());
  return lines;
}

}  // namespace mortise
