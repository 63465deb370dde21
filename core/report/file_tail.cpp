// See file_tail.h.
#include "report/file_tail.h"

#include <algorithm>
#include <fstream>

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

// Bytes of the file from `begin` on, up to `size` of them. They are read, not mapped: who appends may cut the file.
std::string read_bytes(const Path& path, uint64_t begin, uint64_t size) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(begin));
  std::string bytes(size, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
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

// The mark is of kMarkedBytes at most, which lie before the end of a line.
bool FileTail::is_of_file() const {
  if (place_.offset == 0) return true;
  const uint64_t size = std::min<uint64_t>(place_.offset, kMarkedBytes + 1);
  const std::string before = read_bytes(path_, place_.offset - size, size);
  return before.size() == size && before.back() == '\n' && place_behind_lines(before).mark == place_.mark;
}

// Whole lines behind the place, without the last "\n".
std::string FileTail::read_news(uint64_t file_size) const {
  for (uint64_t size = kMostBytes;; size *= 4) {
    std::string news = read_bytes(path_, place_.offset, std::min(size, file_size - place_.offset));
    size_t end = std::string_view(news).substr(0, kMostBytes).rfind('\n');
    if (end == news.npos) end = news.find('\n');
    if (end == news.npos && news.size() == size) continue;  // a longer line
    news.resize(end == news.npos ? 0 : end);
    return news;
  }
}

std::optional<std::vector<std::string>> FileTail::read() {
  const auto info = env_->info(path_);
  if (!info.ok()) return std::vector<std::string>();
  const bool is_same = info->size_bytes == seen_.size_bytes && info->modified_ns == seen_.modified_ns;
  if (is_checked_ && is_same && info->size_bytes == place_.offset) return std::vector<std::string>();
  seen_ = *info;
  is_checked_ = true;
  if (place_.offset > info->size_bytes || !is_of_file()) {
    place_ = {};
    return std::nullopt;
  }
  const std::string news = read_news(info->size_bytes);
  if (news.empty()) return std::vector<std::string>();
  std::vector<std::string> lines;
  for (const std::string_view line : split(news, '\n')) lines.emplace_back(line);
  place_ = place_behind(place_.offset + news.size() - lines.back().size(), lines.back());
  return lines;
}

}  // namespace mortise
