// SHA-256 against published vectors and libsodium.
#include "foundation/formats/sha256.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"

namespace mortise {
namespace {

// FIPS 180-4 examples.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, StepsAndFilesGiveTheSame) {
  const std::string bytes(100'003, 'q');
  Sha256 hash;
  for (size_t i = 0; i < bytes.size(); i += 997) hash.update(std::string_view(bytes).substr(i, 997));
  EXPECT_EQ(to_hex(hash.finish()), sha256_hex(bytes));
  const test::TempDir dir;
  EXPECT_EQ(*sha256_file_hex(default_env(), dir.write("f", bytes)), sha256_hex(bytes));
}

// The CPU's instructions take whole blocks, libsodium the rest: every length and every cut gives libsodium's own
// digest.
TEST(Sha256, EqualsLibsodiumWhateverTheCut) {
  std::string bytes;
  for (uint32_t i = 0; i < 1500; ++i) bytes += static_cast<char>((i * 2654435761U) >> 24);
  for (size_t size = 0; size < 300; ++size) {
    Sha256Digest expected{};
    crypto_hash_sha256(expected.data(), reinterpret_cast<const unsigned char*>(bytes.data()), size);
    EXPECT_EQ(sha256(std::string_view(bytes).substr(0, size)), expected) << size;
  }
  const Sha256Digest whole = sha256(bytes);
  for (size_t cut = 0; cut <= 200; ++cut) {
    Sha256 hash;
    hash.update(std::string_view(bytes).substr(0, cut));
    hash.update(std::string_view(bytes).substr(cut, 128));
    hash.update(std::string_view(bytes).substr(cut + 128));
    EXPECT_EQ(hash.finish(), whole) << cut;
  }
}

}  // namespace
}  // namespace mortise
