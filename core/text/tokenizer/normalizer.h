// Normalizers: the first stage of encoding, text to text, on each piece between added tokens.
// NFC and its kin use utf8proc. Cost: one pass and at most one copy each; ASCII text passes NFC untouched. No stage
// makes more than the piece's `max_bytes` of it (bounds.h). Thread rule: constant after loading.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer/bounds.h"
#include "text/tokenizer/component.h"

namespace mortise {

struct NormalText {
  std::string text;
  bool at_start;     // begins where the whole input begins (nothing before it, nothing dropped)
  size_t max_bytes;  // that a stage may make of it
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual Result<> apply(NormalText& piece) const = 0;
};

// From the "normalizer" of tokenizer.json; null gives null.
Result<std::unique_ptr<Normalizer>> make_normalizer(const Json& spec, const ComponentPlace& place);
std::unique_ptr<Normalizer> make_nfc_normalizer();
// SentencePiece's table (precompiled.cpp).
Result<std::unique_ptr<Normalizer>> make_precompiled_normalizer(const Json& spec, const ComponentPlace& place);

}  // namespace mortise
