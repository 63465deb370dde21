// Keys and signatures in the files of minisign: Ed25519 over the BLAKE2b-512 of a file, with a signed comment.
//
// Only the prehashed form ("ED") is written and read; it is what minisign 0.8 and later write. A secret key file is
// encrypted with scrypt where a password is given. A .minisig file has one signature, as minisign writes it, or several
// of different keys one after another; minisign then checks the first. Source: the format page of minisign
// (jedisct1.github.io/minisign). Cost: one pass over the bytes; a password takes about a second and 1 GiB of memory.
// Threading: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "packs/secret.h"

namespace mortise {

inline constexpr uint64_t kMaxSignatureFileBytes = 8192;
inline constexpr size_t kMaxSignatures = 16;           // signatures of one file
inline constexpr uint64_t kMaxSigningKeyBytes = 4096;  // size of a key file

using KeyId = std::array<unsigned char, 8>;
[[nodiscard]] std::string key_id_text(const KeyId& id);  // 16 hex digits
// As people write it: minisign prints no leading zeros, and a letter may be small. Nothing for any other text.
[[nodiscard]] std::optional<KeyId> parse_key_id(std::string_view text);

struct SigningPublicKey {
  KeyId id{};
  std::array<unsigned char, 32> key{};
  [[nodiscard]] std::string text() const;  // "RWQ...", the line of a .pub file
  [[nodiscard]] std::string id_text() const { return key_id_text(id); }
  bool operator==(const SigningPublicKey&) const = default;
};

struct SigningSecretKey {
  KeyId id{};
  std::array<unsigned char, 64> key{};

  SigningSecretKey() = default;
  SigningSecretKey(const SigningSecretKey&) = default;
  SigningSecretKey& operator=(const SigningSecretKey&) = default;
  ~SigningSecretKey() { wipe(key.data(), key.size()); }
  [[nodiscard]] SigningPublicKey public_key() const;
};

struct KeyPair {
  SigningPublicKey public_key;
  SigningSecretKey secret_key;
};
Result<KeyPair> make_key_pair();

[[nodiscard]] std::string public_key_file(const SigningPublicKey& key);
// Password "": not encrypted.
Result<SecretText> secret_key_file(const SigningSecretKey& key, std::string_view password);

// A .pub file, or its second line alone.
Result<SigningPublicKey> parse_public_key(std::string_view text, std::string_view where);
Result<SigningSecretKey> parse_secret_key(std::string_view text, std::string_view password, std::string_view where);

struct FileSignature {
  KeyId key_id{};
  std::array<unsigned char, 64> signature{};
  std::string comment;  // the trusted one
  std::array<unsigned char, 64> comment_signature{};
};
// The signatures of a .minisig file: at least one, in the order of the file.
Result<std::vector<FileSignature>> parse_signatures(std::string_view text, std::string_view where);
[[nodiscard]] std::string signature_text(const FileSignature& signature);  // four lines of a .minisig file

// The text of a .minisig file. Precondition: the comment is one line.
Result<std::string> sign_bytes(const SigningSecretKey& key, std::string_view bytes, std::string_view comment);

// What a signature signs of a file: its BLAKE2b-512.
using SignedHash = std::array<unsigned char, 64>;
[[nodiscard]] SignedHash signed_hash(std::string_view bytes);

// Is this the signature of exactly these bytes, and of its comment, by this key?
Result<> verify_signature(const FileSignature& signature, const SigningPublicKey& key, const SignedHash& hash,
                          std::string_view where);
Result<> verify_signature(const FileSignature& signature, const SigningPublicKey& key, std::string_view bytes,
                          std::string_view where);

// The value of "name:" in a signed comment, whose fields are separated by tabs; "" without.
[[nodiscard]] std::string comment_field(std::string_view comment, std::string_view name);

}  // namespace mortise
