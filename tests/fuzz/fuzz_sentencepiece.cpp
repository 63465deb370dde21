// A hostile tokenizer.model and a fixed text: ids are in range, and decoding accepts all of them.
#include <vector>

#include "fuzz/fuzz_support.h"
#include "fuzz/memory_env.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  fuzz::MemoryEnv env;
  env.add("model/tokenizer.model", std::string(fuzz::as_text(data, size)));
  const auto tokenizer = Tokenizer::load("model", env);
  if (!tokenizer.ok()) return;
  const auto ids = tokenizer->encode("Hello [UV]  abcab\xE3\x80\x80\xE2\x96\x81<s> \xF0\x9F\xA6\x9C 12", true);
  if (!ids.ok()) return;
  for (const int64_t id : *ids) fuzz::require(id >= 0 && id < tokenizer->vocab_size(), "ids are in range");
  (void)tokenizer->decode(*ids);
  (void)tokenizer->decode(*ids, true);
}

}  // namespace mortise
