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

}  // namespace
}  // namespace mortise
