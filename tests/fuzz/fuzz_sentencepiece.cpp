// A tokenizer.model of anybody, and a fixed text: ids are in range, and decoding takes any of them.
#include <vector>

#include "fuzz/fuzz_support.h"
#include "fuzz/memory_env.h"
#include "text/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mortise;
  fuzz::MemoryEnv env;
  env.add("model/tokenizer.model", std::string(fuzz::as_text(data, size)));
  const auto tokenizer = Tokenizer::load("model", env);
  if (!tokenizer.ok()) return 0;
  const auto ids = tokenizer->encode("Hello [UV]  abcab\xE3\x80\x80\xE2\x96\x81<s> \xF0\x9F\xA6\x9C 12", true);
  if (!ids.ok()) return 0;
  for (const int64_t id : *ids) fuzz::require(id >= 0 && id < tokenizer->vocab_size(), "ids are in range");
  (void)tokenizer->decode(*ids);
  (void)tokenizer->decode(*ids, true);
  return 0;
}
