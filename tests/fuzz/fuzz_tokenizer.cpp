// A hostile tokenizer.json, and a text after the first zero byte: ids are in range, and decoding accepts all of them.
#include <algorithm>
#include <vector>

#include "fuzz/fuzz_support.h"
#include "fuzz/memory_env.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::as_text(data, size);
  const size_t cut = std::min(input.find('\0'), input.size());
  fuzz::MemoryEnv env;
  env.add("model/tokenizer.json", std::string(input.substr(0, cut)));
  const auto tokenizer = Tokenizer::load("model", env);
  if (!tokenizer.ok()) return;
  const std::string_view text = cut < input.size() ? input.substr(cut + 1) : std::string_view("Hello, w\xc3\xb6rld 12");
  const auto plain = tokenizer->encode(text);
  if (!plain.ok()) return;
  for (const int64_t id : *plain) fuzz::require(id >= 0 && id < tokenizer->vocab_size(), "ids are in range");
  // Those of the post-processor are what the file says, as in transformers: the model's embedding decides about them.
  const auto ids = tokenizer->encode(text, true);
  if (!ids.ok()) return;
  fuzz::require(ids->size() <= 64 * text.size() + (size_t{64} << 10) + 2048, "the number of ids is bounded");
  // Few ids, as in a completion, however long the text was.
  const std::vector<int64_t> some(ids->begin(), ids->begin() + std::min<std::ptrdiff_t>(std::ssize(*ids), 256));
  (void)tokenizer->decode(some);
  (void)tokenizer->decode(some, true);
}

}  // namespace mortise
