// Reads and writes keys and signatures with libsodium.
#include "packs/minisign.h"

#include <fmt/core.h>
#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "foundation/base/text.h"
#include "packs/rules.h"

namespace mortise {
namespace {

constexpr std::string_view kUntrusted = "untrusted comment: ", kTrusted = "trusted comment: ";
constexpr std::string_view kPlainKey = "Ed", kHashedSignature = "ED", kScrypt = "Sc", kBlake = "B2";
constexpr size_t kChecksumBytes = 32, kSaltBytes = 32;
constexpr size_t kHiddenBytes = 8 + 64 + kChecksumBytes;  // what a password encrypts: id, key, checksum
constexpr size_t kSecretBytes = 6 + kSaltBytes + 16 + kHiddenBytes;
constexpr uint64_t kMaxPasswordMemory = 2048 * limits::kMiB, kMaxPasswordOps = uint64_t{1} << 26;

using Bytes = SecretBytes;  // some are secret

bool ready() {
  static const bool started = ::sodium_init() >= 0;
  return started;
}

Error no_sodium() { return {ErrorKind::kInternal, "libsodium cannot start", "", "report this with the system's name"}; }

SecretText secret_base64(const Bytes& bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  ::sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // its NUL
  return SecretText(std::move(text));
}

std::string base64(const Bytes& bytes) { return std::string(secret_base64(bytes).view()); }

// Exactly `size` bytes, or nothing.
std::optional<Bytes> from_base64(std::string_view text, size_t size) {
  Bytes bytes(size + 3);
  size_t count = 0;
  const char* end = nullptr;
  if (::sodium_base642bin(bytes.data(), bytes.size(), text.data(), text.size(), nullptr, &count, &end,
                          sodium_base64_VARIANT_ORIGINAL) != 0 ||
      end != text.data() + text.size() || count != size)
    return std::nullopt;
  bytes.resize(size);
  return bytes;
}

std::string_view without_return(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (const std::string_view line : split(text, '\n')) lines.push_back(without_return(line));
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

void append(Bytes& out, std::string_view text) { out.insert(out.end(), text.begin(), text.end()); }
template <size_t N>
void append(Bytes& out, const std::array<unsigned char, N>& bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}
void append_u64(Bytes& out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<unsigned char>(value >> (8 * i)));
}
uint64_t read_u64(const unsigned char* at) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | at[i];
  return value;
}

std::array<unsigned char, kChecksumBytes> checksum_of(const SigningSecretKey& key) {
  Bytes bytes;
  append(bytes, kPlainKey);
  append(bytes, key.id);
  append(bytes, key.key);
  std::array<unsigned char, kChecksumBytes> sum{};
  ::crypto_generichash(sum.data(), sum.size(), bytes.data(), bytes.size(), nullptr, 0);
  return sum;
}

// Encrypts and decrypts: both are an exclusive or with a stream made of the password.
Result<> hide(Bytes& hidden, std::string_view password, const unsigned char* salt, uint64_t ops, uint64_t memory,
              std::string_view where) {
  Bytes stream(hidden.size());
  if (::crypto_pwhash_scryptsalsa208sha256(stream.data(), stream.size(), password.data(), password.size(), salt, ops,
                                           memory) != 0)
    return Error{ErrorKind::kData, "there is no memory to derive a key from the password", std::string(where),
                 fmt::format("free {} of memory", format_bytes(memory))};
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] ^= stream[i];
  return {};
}

Error bad_key(std::string what, std::string_view where) {
  return {ErrorKind::kData, std::move(what), std::string(where),
          "name a key file of minisign or `mortise pack keygen`"};
}

Error bad_signature(std::string what, std::string_view where) {
  return broken_rule(PackRule::kSignature, std::move(what), where,
                     "get the archive and its .minisig again from the publisher, and do not use these");
}

// The second line of a key file.
Result<std::string_view> key_line(std::string_view text, std::string_view where, bool line_alone) {
  if (text.size() > kMaxSigningKeyBytes) return bad_key("this is too long for a key file", where);
  const auto lines = lines_of(text);
  if (lines.size() == 2 && lines[0].starts_with(kUntrusted)) return lines[1];
  if (lines.size() == 1 && line_alone) return lines[0];
  return bad_key("this is not a key file", where);
}

}  // namespace

std::string key_id_text(const KeyId& id) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string text;
  for (size_t i = id.size(); i-- > 0;) {
    text += kDigits[id[i] >> 4];
    text += kDigits[id[i] & 15];
  }
  return text;
}

std::optional<KeyId> parse_key_id(std::string_view text) {
  KeyId id{};
  if (text.empty() || text.size() > 2 * id.size()) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    const char letter = static_cast<char>(c | 0x20);
    if (!is_digit && (letter < 'a' || letter > 'f')) return std::nullopt;
    value = value << 4 | static_cast<uint64_t>(is_digit ? c - '0' : letter - 'a' + 10);
  }
  for (unsigned char& byte : id) {
    byte = static_cast<unsigned char>(value);
    value >>= 8;
  }
  return id;
}

SigningPublicKey SigningSecretKey::public_key() const {
  SigningPublicKey out;
  out.id = id;
  std::copy(key.end() - static_cast<std::ptrdiff_t>(out.key.size()), key.end(), out.key.begin());
  return out;
}

std::string SigningPublicKey::text() const {
  Bytes bytes;
  append(bytes, kPlainKey);
  append(bytes, id);
  append(bytes, key);
  return base64(bytes);
}

Result<KeyPair> make_key_pair() {
  if (!ready()) return no_sodium();
  KeyPair pair;
  ::crypto_sign_keypair(pair.public_key.key.data(), pair.secret_key.key.data());
  ::randombytes_buf(pair.public_key.id.data(), pair.public_key.id.size());
  pair.secret_key.id = pair.public_key.id;
  return pair;
}

std::string public_key_file(const SigningPublicKey& key) {
  return fmt::format("{}minisign public key {}\n{}\n", kUntrusted, key.id_text(), key.text());
}

Result<SecretText> secret_key_file(const SigningSecretKey& key, std::string_view password) {
  if (!ready()) return no_sodium();
  Bytes hidden;
  append(hidden, key.id);
  append(hidden, key.key);
  append(hidden, checksum_of(key));
  Bytes bytes;
  append(bytes, kPlainKey);
  std::array<unsigned char, kSaltBytes> salt{};
  uint64_t ops = 0, memory = 0;
  if (password.empty()) {
    append(bytes, std::string_view("\0\0", 2));
  } else {
    append(bytes, kScrypt);
    ::randombytes_buf(salt.data(), salt.size());
    ops = crypto_pwhash_scryptsalsa208sha256_OPSLIMIT_SENSITIVE;
    memory = crypto_pwhash_scryptsalsa208sha256_MEMLIMIT_SENSITIVE;
    TRY(hide(hidden, password, salt.data(), ops, memory, ""));
  }
  append(bytes, kBlake);
  append(bytes, salt);
  append_u64(bytes, ops);
  append_u64(bytes, memory);
  bytes.insert(bytes.end(), hidden.begin(), hidden.end());
  const std::string kind = password.empty() ? "minisign secret key" : "minisign encrypted secret key";
  SecretText out;
  out.append(fmt::format("{}{}\n", kUntrusted, kind));
  out.append(secret_base64(bytes).view());
  out.append("\n");
  return out;
}

Result<SigningPublicKey> parse_public_key(std::string_view text, std::string_view where) {
  const auto bytes = from_base64(TRY(key_line(text, where, true)), 2 + 8 + 32);
  if (!bytes || std::memcmp(bytes->data(), kPlainKey.data(), 2) != 0)
    return bad_key("this is no Ed25519 public key of minisign", where);
  SigningPublicKey key;
  std::memcpy(key.id.data(), bytes->data() + 2, key.id.size());
  std::memcpy(key.key.data(), bytes->data() + 10, key.key.size());
  return key;
}

Result<SigningSecretKey> parse_secret_key(std::string_view text, std::string_view password, std::string_view where) {
  if (!ready()) return no_sodium();
  const auto bytes = from_base64(TRY(key_line(text, where, false)), kSecretBytes);
  const auto has = [&](size_t at, std::string_view word) {
    return std::memcmp(bytes->data() + at, word.data(), 2) == 0;
  };
  if (!bytes || !has(0, kPlainKey) || !has(4, kBlake))
    return bad_key("this is no Ed25519 secret key of minisign", where);
  Bytes hidden(bytes->end() - kHiddenBytes, bytes->end());
  if (has(2, kScrypt)) {
    if (password.empty())
      return Error{ErrorKind::kConfig, "the secret key has a password", std::string(where),
                   "give --password-file FILE"};
    const unsigned char* at = bytes->data() + 6;
    const uint64_t ops = read_u64(at + kSaltBytes), memory = read_u64(at + kSaltBytes + 8);
    if (ops > kMaxPasswordOps || memory > kMaxPasswordMemory)
      return bad_key("the secret key asks for more work than is allowed", where);
    TRY(hide(hidden, password, at, ops, memory, where));
  } else if (!has(2, std::string_view("\0\0", 2))) {
    return bad_key("the secret key is encrypted in an unknown way", where);
  }
  SigningSecretKey key;
  std::memcpy(key.id.data(), hidden.data(), key.id.size());
  std::memcpy(key.key.data(), hidden.data() + 8, key.key.size());
  const auto sum = checksum_of(key);
  // minisign gives a key without a password a checksum of zeros.
  const bool has_none = !has(2, kScrypt) && ::sodium_is_zero(hidden.data() + 72, sum.size()) == 1;
  if (!has_none && ::sodium_memcmp(sum.data(), hidden.data() + 72, sum.size()) != 0)
    return bad_key("the password is wrong, or the key file is damaged", where);
  return key;
}

namespace {

// Four lines of a .minisig file.
Result<FileSignature> parse_block(std::span<const std::string_view> lines, std::string_view where) {
  if (!lines[0].starts_with(kUntrusted) || !lines[2].starts_with(kTrusted))
    return bad_signature("this is not a signature file of minisign", where);
  const auto first = from_base64(lines[1], 2 + 8 + 64);
  const auto second = from_base64(lines[3], 64);
  if (!first || !second) return bad_signature("the signature file is damaged", where);
  if (std::memcmp(first->data(), kHashedSignature.data(), 2) != 0)
    return bad_signature("the signature is not of the prehashed form (ED) that minisign 0.8 and later write", where);
  FileSignature signature;
  std::memcpy(signature.key_id.data(), first->data() + 2, 8);
  std::memcpy(signature.signature.data(), first->data() + 10, 64);
  std::memcpy(signature.comment_signature.data(), second->data(), 64);
  signature.comment = lines[2].substr(kTrusted.size());
  return signature;
}

}  // namespace

Result<std::vector<FileSignature>> parse_signatures(std::string_view text, std::string_view where) {
  constexpr size_t kBlockLines = 4;
  if (text.size() > kMaxSignatureFileBytes) return bad_signature("this is too long for a signature", where);
  const auto lines = lines_of(text);
  if (lines.empty() || lines.size() % kBlockLines != 0)
    return bad_signature("this is not a signature file of minisign", where);
  if (lines.size() / kBlockLines > kMaxSignatures)
    return bad_signature(fmt::format("it has more than {} signatures", kMaxSignatures), where);
  std::vector<FileSignature> signatures;
  for (size_t i = 0; i < lines.size(); i += kBlockLines)
    signatures.push_back(TRY(parse_block(std::span(lines).subspan(i, kBlockLines), where)));
  return signatures;
}

std::string signature_text(const FileSignature& signature) {
  Bytes first, second;
  append(first, kHashedSignature);
  append(first, signature.key_id);
  append(first, signature.signature);
  append(second, signature.comment_signature);
  return fmt::format("{}signature from minisign secret key\n{}\n{}{}\n{}\n", kUntrusted, base64(first), kTrusted,
                     signature.comment, base64(second));
}

SignedHash signed_hash(std::string_view bytes) {
  SignedHash hash{};
  if (!ready()) return hash;  // whoever signs or verifies says so
  ::crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                       nullptr, 0);
  return hash;
}

Result<std::string> sign_bytes(const SigningSecretKey& key, std::string_view bytes, std::string_view comment) {
  if (!ready()) return no_sodium();
  const SignedHash hash = signed_hash(bytes);
  FileSignature out;
  out.key_id = key.id;
  out.comment = comment;
  ::crypto_sign_detached(out.signature.data(), nullptr, hash.data(), hash.size(), key.key.data());
  Bytes all;
  append(all, out.signature);
  append(all, comment);
  ::crypto_sign_detached(out.comment_signature.data(), nullptr, all.data(), all.size(), key.key.data());
  return signature_text(out);
}

Result<> verify_signature(const FileSignature& signature, const SigningPublicKey& key, const SignedHash& hash,
                          std::string_view where) {
  if (!ready()) return no_sodium();
  if (signature.key_id != key.id)
    return bad_signature(
        fmt::format("it was signed with the key {}, not {}", key_id_text(signature.key_id), key.id_text()), where);
  if (::crypto_sign_verify_detached(signature.signature.data(), hash.data(), hash.size(), key.key.data()) != 0)
    return bad_signature("the signature is not one of these bytes", where);
  Bytes all;
  append(all, signature.signature);
  append(all, signature.comment);
  if (::crypto_sign_verify_detached(signature.comment_signature.data(), all.data(), all.size(), key.key.data()) != 0)
    return bad_signature("the signed comment was changed", where);
  return {};
}

Result<> verify_signature(const FileSignature& signature, const SigningPublicKey& key, std::string_view bytes,
                          std::string_view where) {
  return verify_signature(signature, key, signed_hash(bytes), where);
}

std::string comment_field(std::string_view comment, std::string_view name) {
  for (const std::string_view field : split(comment, '\t')) {
    if (field.starts_with(name) && field.size() > name.size() && field[name.size()] == ':')
      return std::string(field.substr(name.size() + 1));
  }
  return "";
}

}  // namespace mortise
