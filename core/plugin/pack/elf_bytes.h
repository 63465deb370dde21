// ElfBytes: the bytes of an ELF file, with every offset checked. Private to this folder. Thread rule: as a span.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace mortise {

// Reads a T at any offset. The result is empty if a byte of it lies outside the file.
class ElfBytes {
 public:
  explicit ElfBytes(std::span<const std::byte> file) : file_(file) {}
  [[nodiscard]] uint64_t size() const { return file_.size(); }

  [[nodiscard]] bool contains(uint64_t offset, uint64_t count) const {
    return offset <= file_.size() && count <= file_.size() - offset;
  }
  template <class T>
  [[nodiscard]] std::optional<T> read(uint64_t offset) const {
    if (!contains(offset, sizeof(T))) return std::nullopt;
    T value;
    std::memcpy(&value, file_.data() + offset, sizeof(T));
    return value;
  }
  [[nodiscard]] std::string_view text(uint64_t offset, uint64_t count) const {
    return {reinterpret_cast<const char*>(file_.data()) + offset, count};
  }

 private:
  std::span<const std::byte> file_;
};

}  // namespace mortise
