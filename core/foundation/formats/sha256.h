// SHA-256 (FIPS 180-4) through libsodium, in one piece, in steps, or of a file. Thread rule: plain values.
#pragma once

#include <sodium/crypto_hash_sha256.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "foundation/base/env.h"

namespace mortise {

using Sha256Digest = std::array<unsigned char, 32>;

class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  [[nodiscard]] Sha256Digest finish();  // once

 private:
  crypto_hash_sha256_state state_;
};

[[nodiscard]] Sha256Digest sha256(std::span<const std::byte> bytes);
[[nodiscard]] Sha256Digest sha256(std::string_view text);
[[nodiscard]] std::string sha256_hex(std::string_view text);
// Hashes a mapped file, whose pages leave this process behind the hash: reading a file of any size takes little memory.
[[nodiscard]] std::string sha256_hex(const MappedFile& file);
Result<std::string> sha256_file_hex(Env& env, const Path& path);

[[nodiscard]] std::string to_hex(std::span<const unsigned char> bytes);  // lower case

}  // namespace mortise
