// Memory of secrets (keys, passwords), overwritten before it is given back.
//
// This keeps a secret out of memory that is used again, swapped or dumped later. What the kernel, a file's cache or a
// register holds is out of reach. Threading: values.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

// Overwrites with zeros; the compiler does not remove it.
void wipe(void* bytes, size_t size);

// Overwrites what a container gives back. `Base` allocates.
template <class T, class Base = std::allocator<T>>
class WipingAllocator : public Base {
 public:
  using value_type = T;
  template <class U>
  struct rebind {
    using other = WipingAllocator<U, typename std::allocator_traits<Base>::template rebind_alloc<U>>;
  };
  WipingAllocator() = default;
  void deallocate(T* at, size_t count) {
    wipe(at, count * sizeof(T));
    std::allocator_traits<Base>::deallocate(*this, at, count);
  }
};

using SecretBytes = std::vector<unsigned char, WipingAllocator<unsigned char>>;

// A text that is never in a std::string: a short one of those lies in the object itself and is not overwritten.
class SecretText {
 public:
  SecretText() = default;
  explicit SecretText(std::string&& text);  // the text is overwritten there
  SecretText(SecretText&&) noexcept = default;
  SecretText& operator=(SecretText&&) noexcept = default;
  SecretText(const SecretText&) = delete;
  SecretText& operator=(const SecretText&) = delete;
  ~SecretText() = default;

  void append(std::string_view text) { bytes_.insert(bytes_.end(), text.begin(), text.end()); }
  void remove_line_end();
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  [[nodiscard]] std::string_view view() const { return {bytes_.data(), bytes_.size()}; }

 private:
  std::vector<char, WipingAllocator<char>> bytes_;
};

Result<SecretText> read_secret(Env& env, const Path& path, uint64_t max_bytes);

}  // namespace mortise
