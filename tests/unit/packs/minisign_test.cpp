// Signatures: our own both ways, and those of Debian's minisign both ways.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "packs/minisign.h"
#include "support/temp_dir.h"
#include "support/this_build.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

constexpr const char* kComment = "timestamp:1\tfile:a.mpack\thashed\tpack:acme.match\tversion:1.0.0";

bool has_minisign() { return std::system("minisign -v > /dev/null 2>&1") == 0; }

int shell(const TempDir& dir, const std::string& command) {
  return std::system(("cd " + dir.path().string() + " && { " + command + " ; } > log.txt 2>&1").c_str());
}

TEST(PackSignature, GoodOnesAndEveryKindOfBadOne) {
  ASSERT_OK_AND_ASSIGN(const KeyPair pair, make_key_pair());
  ASSERT_OK_AND_ASSIGN(const KeyPair other, make_key_pair());
  ASSERT_OK_AND_ASSIGN(const std::string text, sign_bytes(pair.secret_key, "the bytes", kComment));
  ASSERT_OK_AND_ASSIGN(const std::vector<FileSignature> all, parse_signatures(text, "a.minisig"));
  ASSERT_EQ(all.size(), 1U);
  const FileSignature& good = all[0];
  EXPECT_EQ(good.comment, kComment);
  EXPECT_EQ(comment_field(good.comment, "pack"), "acme.match");
  EXPECT_EQ(comment_field(good.comment, "hashed"), "");
  EXPECT_OK(verify_signature(good, pair.public_key, "the bytes", "a"));
  EXPECT_THAT(error_of(verify_signature(good, pair.public_key, "the bytez", "a")), HasSubstr("rule P16"));
  EXPECT_THAT(error_of(verify_signature(good, pair.public_key, "", "a")), HasSubstr("rule P16"));
  EXPECT_THAT(error_of(verify_signature(good, other.public_key, "the bytes", "a")), HasSubstr("signed with the key"));
  SigningPublicKey forged = other.public_key;
  forged.id = pair.public_key.id;
  EXPECT_THAT(error_of(verify_signature(good, forged, "the bytes", "a")), HasSubstr("rule P16"));
  FileSignature changed = good;
  changed.comment += "\tversion:9.0.0";
  EXPECT_THAT(error_of(verify_signature(changed, pair.public_key, "the bytes", "a")), HasSubstr("comment was changed"));
  for (size_t bit = 0; bit < 512; ++bit) {
    changed = good;
    changed.signature[bit / 8] = static_cast<unsigned char>(changed.signature[bit / 8] ^ (1U << bit % 8));
    ASSERT_FALSE(verify_signature(changed, pair.public_key, "the bytes", "a").ok()) << bit;
  }
}

TEST(PackSignature, DamagedFilesAreRefused) {
  ASSERT_OK_AND_ASSIGN(const KeyPair pair, make_key_pair());
  ASSERT_OK_AND_ASSIGN(const std::string text, sign_bytes(pair.secret_key, "bytes", "c"));
  for (size_t size = 0; size + 1 < text.size(); ++size)
    EXPECT_FALSE(parse_signatures(text.substr(0, size), "a").ok()) << size;
  EXPECT_FALSE(parse_signatures(text + "more\n", "a").ok());
  EXPECT_FALSE(parse_signatures(std::string(100'000, 'a'), "a").ok());
  std::string legacy = text;
  legacy[legacy.find('\n') + 1 + 1] = 'W';  // "RW" = "Ed" instead of "RU" = "ED"
  EXPECT_THAT(error_of(parse_signatures(legacy, "a")), HasSubstr("prehashed"));
  EXPECT_FALSE(parse_public_key("RWQ", "k").ok());
  EXPECT_FALSE(parse_public_key(std::string(5000, 'R'), "k").ok());
  EXPECT_FALSE(parse_public_key("untrusted comment: x\n" + pair.public_key.text() + "\nmore\n", "k").ok());
}

TEST(PackSignature, IdsAreReadAsPeopleAndMinisignWriteThem) {
  const KeyId id = {0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01};
  EXPECT_EQ(key_id_text(id), "0123456789ABCDEF");
  for (const char* text : {"0123456789ABCDEF", "123456789ABCDEF", "0123456789abcdef", "123456789aBcDeF"})
    EXPECT_EQ(parse_key_id(text), id) << text;
  EXPECT_EQ(parse_key_id("0"), KeyId{});
  for (const char* text : {"", "00123456789ABCDEF", "0x123", "12345678 9", "G", "-1", "key.pub"})
    EXPECT_FALSE(parse_key_id(text).has_value()) << text;
}

// Looks at memory when it is given back.
template <class T>
struct WatchedAllocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = WatchedAllocator<U>;
  };
  static inline size_t num_freed = 0, num_dirty = 0;
  void deallocate(T* at, size_t count) {
    num_freed += count;
    num_dirty += static_cast<size_t>(std::count_if(at, at + count, [](T value) { return value != T(); }));
    std::allocator<T>::deallocate(at, count);
  }
};

TEST(PackSecrets, MemoryIsOverwrittenBeforeItIsGivenBack) {
  using Watched = WatchedAllocator<char>;
  {
    std::vector<char, WipingAllocator<char, Watched>> text;
    for (int i = 0; i < 1000; ++i) text.push_back('s');  // moves several times
    text.resize(3);                                      // what is behind the end counts too
  }
  EXPECT_GT(Watched::num_freed, 1000U);
  EXPECT_EQ(Watched::num_dirty, 0U);
}

TEST(PackSecrets, AShortPasswordAndAKeyAreOverwrittenWhereTheyWere) {
  std::string password = "short";  // short enough to lie in the object itself
  const SecretText secret(std::move(password));
  EXPECT_EQ(secret.view(), "short");
  const std::string_view left(password.data(), 5);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(left, std::string_view("\0\0\0\0\0", 5));
  alignas(SigningSecretKey) std::array<unsigned char, sizeof(SigningSecretKey)> room{};
  auto* key = new (room.data()) SigningSecretKey;
  key->key.fill(0xAB);
  key->~SigningSecretKey();
  EXPECT_EQ(std::count(room.begin(), room.end(), 0xAB), 0);
}

TEST(PackSignature, KeyFilesComeBack) {
  ASSERT_OK_AND_ASSIGN(const KeyPair pair, make_key_pair());
  ASSERT_OK_AND_ASSIGN(const SigningPublicKey read, parse_public_key(public_key_file(pair.public_key), "k"));
  EXPECT_EQ(read, pair.public_key);
  ASSERT_OK_AND_ASSIGN(const SigningPublicKey line, parse_public_key(pair.public_key.text(), "k"));
  EXPECT_EQ(line, pair.public_key);
  ASSERT_OK_AND_ASSIGN(const SecretText file, secret_key_file(pair.secret_key, ""));
  const std::string plain(file.view());
  ASSERT_OK_AND_ASSIGN(const SigningSecretKey secret, parse_secret_key(plain, "", "k"));
  EXPECT_EQ(secret.key, pair.secret_key.key);
  std::string damaged = plain;
  damaged[damaged.size() - 20] = damaged[damaged.size() - 20] == 'A' ? 'B' : 'A';
  EXPECT_FALSE(parse_secret_key(damaged, "", "k").ok());
}

// The key as minisign encrypts it, but with the least work for the password: our files ask for seconds and a GiB. A secret
// key's bytes are "Ed", "Sc", "B2", 32 bytes of salt, the work and the memory as numbers of eight bytes, and the hidden part.
std::string weakly_guarded(const SigningSecretKey& key, const std::string& password) {
  const auto plain = secret_key_file(key, "");
  if (!plain.ok()) return plain.error().to_string();
  std::string text(plain->view());
  const size_t line = text.find('\n') + 1;
  std::array<unsigned char, 158> bytes{};
  size_t size = 0;
  EXPECT_EQ(sodium_base642bin(bytes.data(), bytes.size(), text.data() + line, text.size() - line, "\n", &size, nullptr,
                              sodium_base64_VARIANT_ORIGINAL),
            0);
  EXPECT_EQ(size, bytes.size());
  std::memcpy(bytes.data() + 2, "Sc", 2);
  unsigned char* const salt = bytes.data() + 6;
  std::memset(salt, 7, 32);
  const std::array<uint64_t, 2> work{crypto_pwhash_scryptsalsa208sha256_OPSLIMIT_MIN,
                                     crypto_pwhash_scryptsalsa208sha256_MEMLIMIT_MIN};
  std::memcpy(salt + 32, work.data(), 16);
  std::array<unsigned char, 104> stream{};
  EXPECT_EQ(crypto_pwhash_scryptsalsa208sha256(stream.data(), stream.size(), password.data(), password.size(), salt,
                                               work[0], work[1]),
            0);
  for (size_t i = 0; i < stream.size(); ++i) bytes[54 + i] ^= stream[i];
  std::array<char, 256> encoded{};
  sodium_bin2base64(encoded.data(), encoded.size(), bytes.data(), bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  return text.substr(0, line) + encoded.data() + "\n";
}

TEST(PackSignature, APasswordGuardsTheSecretKey) {
  ASSERT_OK_AND_ASSIGN(const KeyPair pair, make_key_pair());
  const std::string file = weakly_guarded(pair.secret_key, "open sesame");
  EXPECT_THAT(error_of(parse_secret_key(file, "", "k")), HasSubstr("--password-file"));
  EXPECT_THAT(error_of(parse_secret_key(file, "open sesam", "k")), HasSubstr("password is wrong"));
  ASSERT_OK_AND_ASSIGN(const SigningSecretKey secret, parse_secret_key(file, "open sesame", "k"));
  EXPECT_EQ(secret.key, pair.secret_key.key);
}

TEST(PackSignature, OurKeyFilesAskForMuchWork) {
  if (kSanitized) GTEST_SKIP() << "nearly all of it is inside libsodium, which no sanitizer sees";
  ASSERT_OK_AND_ASSIGN(const KeyPair pair, make_key_pair());
  const auto file = secret_key_file(pair.secret_key, "open sesame");
  if (!file.ok()) GTEST_SKIP() << "no memory for scrypt: " << file.error().to_string();
  EXPECT_THAT(std::string(file->view()), HasSubstr("encrypted"));
  ASSERT_OK_AND_ASSIGN(const SigningSecretKey secret, parse_secret_key(file->view(), "open sesame", "k"));
  EXPECT_EQ(secret.key, pair.secret_key.key);
}

TEST(PackSignature, MinisignReadsOurs) {
  if (!has_minisign()) GTEST_SKIP() << "minisign is not installed";
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(const KeyPair pair, make_key_pair());
  const std::string bytes(100'000, 'q');
  dir.write("a.mpack", bytes);
  dir.write("key.pub", public_key_file(pair.public_key));
  ASSERT_OK_AND_ASSIGN(const std::string signature, sign_bytes(pair.secret_key, bytes, kComment));
  dir.write("a.mpack.minisig", signature);
  EXPECT_EQ(shell(dir, "minisign -V -p key.pub -m a.mpack"), 0) << dir.read("log.txt");
  EXPECT_THAT(dir.read("log.txt"), testing::AllOf(HasSubstr("signature verified"), HasSubstr("pack:acme.match")));
  dir.write("a.mpack", bytes + "x");
  EXPECT_NE(shell(dir, "minisign -V -p key.pub -m a.mpack"), 0);
  // It signs with our secret key, too.
  ASSERT_OK_AND_ASSIGN(const SecretText secret, secret_key_file(pair.secret_key, ""));
  dir.write("key.sec", std::string(secret.view()));
  dir.write("b.mpack", bytes);
  ASSERT_EQ(shell(dir, "minisign -S -W -s key.sec -m b.mpack < /dev/null"), 0) << dir.read("log.txt");
  ASSERT_OK_AND_ASSIGN(const auto theirs, parse_signatures(dir.read("b.mpack.minisig"), "b"));
  EXPECT_OK(verify_signature(theirs.at(0), pair.public_key, bytes, "b"));
}

// A file with the signatures of several keys is the one-key files one after another.
TEST(PackSignature, SeveralOfOneFile) {
  std::string text;
  std::vector<KeyId> ids;
  for (size_t i = 0; i <= kMaxSignatures; ++i) {
    ASSERT_OK_AND_ASSIGN(const KeyPair pair, make_key_pair());
    ASSERT_OK_AND_ASSIGN(const std::string one, sign_bytes(pair.secret_key, "b", "comment " + std::to_string(i)));
    ids.push_back(pair.public_key.id);
    text += one;
    const auto all = parse_signatures(text, "a");
    if (i == kMaxSignatures) {
      EXPECT_THAT(error_of(all), testing::AllOf(HasSubstr("rule P16"), HasSubstr("more than 16")));
      break;
    }
    ASSERT_OK(all);
    ASSERT_EQ(all->size(), i + 1);
    EXPECT_OK(verify_signature(all->back(), pair.public_key, "b", "a"));
    EXPECT_EQ(all->back().comment, "comment " + std::to_string(i));
    EXPECT_EQ(all->front().key_id, ids[0]);
    std::string again;
    for (const FileSignature& signature : *all) again += signature_text(signature);
    EXPECT_EQ(again, text);
    for (const size_t cut : {2U, 60U, 100U, 200U})
      EXPECT_FALSE(parse_signatures(text.substr(0, text.size() - cut), "a").ok()) << cut;
  }
}

TEST(PackSignature, SeveralOfOneFileWithMinisign) {
  if (!has_minisign()) GTEST_SKIP() << "minisign is not installed";
  const TempDir dir;
  dir.write("a", "bytes");
  ASSERT_EQ(shell(dir,
                  "for k in 1 2; do minisign -G -W -p $k.pub -s $k.sec && minisign -S -W -s $k.sec -m a -x $k.sig; "
                  "done; cat 1.sig 2.sig > a.minisig"),
            0)
      << dir.read("log.txt");
  ASSERT_OK_AND_ASSIGN(const auto all, parse_signatures(dir.read("a.minisig"), "a"));
  ASSERT_EQ(all.size(), 2U);
  for (const size_t i : {0U, 1U}) {
    const std::string name = std::to_string(i + 1) + ".pub";
    ASSERT_OK_AND_ASSIGN(const SigningPublicKey key, parse_public_key(dir.read(name), name));
    EXPECT_OK(verify_signature(all[i], key, "bytes", "a"));
  }
  EXPECT_EQ(shell(dir, "minisign -V -p 1.pub -m a"), 0) << "minisign looks at the first: " << dir.read("log.txt");
}

TEST(PackSignature, WeReadMinisigns) {
  if (!has_minisign()) GTEST_SKIP() << "minisign is not installed";
  const TempDir dir;
  dir.write("a.mpack", "bytes of a pack");
  ASSERT_EQ(shell(dir, "minisign -G -W -p key.pub -s key.sec && minisign -S -W -s key.sec -m a.mpack"), 0)
      << dir.read("log.txt");
  ASSERT_OK_AND_ASSIGN(const SigningPublicKey key, parse_public_key(dir.read("key.pub"), "key.pub"));
  ASSERT_OK_AND_ASSIGN(const auto signatures, parse_signatures(dir.read("a.mpack.minisig"), "a"));
  const FileSignature& signature = signatures.at(0);
  EXPECT_OK(verify_signature(signature, key, "bytes of a pack", "a"));
  EXPECT_THAT(error_of(verify_signature(signature, key, "bytes of a park", "a")), HasSubstr("rule P16"));
  // minisign prints the id without leading zeros.
  const std::string id = key.id_text();
  const std::string printed = id.substr(id.find_first_not_of('0'));
  EXPECT_THAT(dir.read("key.pub"), HasSubstr("public key " + printed + "\n"));
  EXPECT_EQ(parse_key_id(printed), key.id);
  ASSERT_OK_AND_ASSIGN(const SigningSecretKey secret, parse_secret_key(dir.read("key.sec"), "", "key.sec"));
  ASSERT_OK_AND_ASSIGN(const std::string ours, sign_bytes(secret, "bytes of a pack", "c"));
  dir.write("a.mpack.minisig", ours);
  EXPECT_EQ(shell(dir, "minisign -V -p key.pub -m a.mpack"), 0) << dir.read("log.txt");
}

}  // namespace
}  // namespace mortise::test
