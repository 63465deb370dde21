// A tokenizer.json of anybody, and a text (behind the first zero byte): ids are in range, and decoding takes any of
// them.
#include <vector>

#include "fuzz/fuzz_support.h"
#include "fuzz/memory_env.h"
#include "text/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mortise;
  const std::string_view input = fuzz::as_text(data, size);
  const size_t cut = std::min(input.find('\0'), input.size());
  fuzz::MemoryEnv env;
  env.add("model/tokenizer.json", std::string(input.substr(0, cut)));
  const auto tokenizer = Tokenizer::load("model", env);
  if (!tokenizer.ok()) return 0;
  const std::string_view text = cut < input.size() ? input.substr(cut + 1) : std::string_view("Hello, w\xc3\xb6rld 12");
  const auto plain = tokenizer->encode(text);
  if (!plain.ok()) return 0;
  for (const int64_t id : *plain) fuzz::require(id >= 0 && id < tokenizer->vocab_size(), "ids are in range");
  // Those of the post-processor are what the file says, as in transformers: the model's embedding decides about them.
  const auto ids = tokenizer->encode(text, true);
  if (!ids.ok()) return 0;
  (void)tokenizer->decode(*ids);
  (void)tokenizer->decode(*ids, true);
  return 0;
}
