// Overwrites secrets with libsodium.
#include "packs/secret.h"

#include <sodium.h>

namespace mortise {

void wipe(void* bytes, size_t size) { ::sodium_memzero(bytes, size); }

SecretText::SecretText(std::string&& text) : bytes_(text.begin(), text.end()) { wipe(text.data(), text.size()); }

void SecretText::remove_line_end() {
  while (!bytes_.empty() && (bytes_.back() == '\n' || bytes_.back() == '\r')) bytes_.pop_back();
}

Result<SecretText> read_secret(Env& env, const Path& path, uint64_t max_bytes) {
  auto text = env.read_file(path, max_bytes);
  if (!text.ok()) return std::move(text).error();
  return SecretText(std::move(*text));
}

}  // namespace mortise
