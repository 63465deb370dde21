// See sha256.h.
#include "foundation/formats/sha256.h"

#include <sys/mman.h>

#include <algorithm>

#include "foundation/formats/sha256_blocks.h"

namespace mortise {

Sha256::Sha256() : state_{} { crypto_hash_sha256_init(&state_); }

void Sha256::update(std::span<const std::byte> bytes) {
  const auto by_libsodium = [this](std::span<const std::byte> part) {
    if (!part.empty())
      crypto_hash_sha256_update(&state_, reinterpret_cast<const unsigned char*>(part.data()), part.size());
  };
  if (cpu_has_sha256()) {  // libsodium completes a begun block; the CPU's own instructions take the whole blocks behind it
    const size_t begun = state_.count / 8 % 64;
    const size_t completes = begun == 0 ? 0 : std::min(64 - begun, bytes.size());
    by_libsodium(bytes.first(completes));
    bytes = bytes.subspan(completes);
    if (const size_t blocks = bytes.size() / 64; blocks > 0) {
      sha256_blocks(state_.state, reinterpret_cast<const unsigned char*>(bytes.data()), blocks);
      state_.count += uint64_t{blocks} * 512;  // bits
      bytes = bytes.subspan(blocks * 64);
    }
  }
  by_libsodium(bytes);
}

void Sha256::update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }

Sha256Digest Sha256::finish() {
  Sha256Digest digest{};
  crypto_hash_sha256_final(&state_, digest.data());
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

Sha256Digest sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text.data(), text.size()))); }

std::string sha256_hex(std::string_view text) { return to_hex(sha256(text)); }

std::string sha256_hex(const MappedFile& file) {
  constexpr size_t kPiece = size_t{16} << 20;  // whole pages
  Sha256 hash;
  for (std::span<const std::byte> rest = file.bytes(); !rest.empty();) {
    const std::span<const std::byte> piece = rest.first(std::min(kPiece, rest.size()));
    hash.update(piece);
    ::madvise(const_cast<std::byte*>(piece.data()), piece.size(), MADV_DONTNEED);  // the file has them
    rest = rest.subspan(piece.size());
  }
  return to_hex(hash.finish());
}

Result<std::string> sha256_file_hex(Env& env, const Path& path) { return sha256_hex(TRY(env.map_file(path))); }

std::string to_hex(std::span<const unsigned char> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace mortise
