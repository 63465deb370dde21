// Decoders: token texts to the text that people see, as a chain of stages that work while tokens come in.
//
// A stage takes chunks of tokens and hands chunks on. Decoding a whole list and decoding token by token run the same
// stages, so both give the same text; the one exception is stated at DecodeMode. Cost: linear.
// Thread rule: a DecoderChain is constant; each DecodeRun belongs to one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/component.h"

namespace mortise {

// ByteFallback shows a run of <0xNN> tokens as text only if the whole run is UTF-8. A stream cannot wait for the end of
// the run: it gives each character out with its last byte, and holds back from the first byte that cannot be right.
enum class DecodeMode { kWhole, kStream };

class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  // A chunk of the current token; `ends` with its last chunk. Output goes to `next`, or to the text at the chain's end.
  virtual void push(std::string_view chunk, bool ends) = 0;
  virtual void finish() = 0;  // no token follows

  // Set by the chain.
  DecodeStage* next = nullptr;
  std::string* sink = nullptr;

 protected:
  void emit(std::string_view chunk, bool ends) {
    if (next != nullptr) {
      next->push(chunk, ends);
    } else {
      sink->append(chunk);
    }
  }
  void finish_next() {
    if (next != nullptr) next->finish();
  }
};

// One decoding under way.
class DecodeRun {
 public:
  explicit DecodeRun(std::vector<std::unique_ptr<DecodeStage>> stages);
  // The text that this token completes.
  std::string push(std::string_view token);
  std::string finish();

 private:
  std::vector<std::unique_ptr<DecodeStage>> stages_;
  std::unique_ptr<std::string> text_;
};

class DecoderChain {
 public:
  // From the "decoder" of tokenizer.json; null joins tokens with spaces.
  static Result<DecoderChain> make(const Json& spec, const ComponentPlace& place);
  [[nodiscard]] DecodeRun start(DecodeMode mode) const;
  // What a token adds to the text behind other tokens. Its bytes may be a part of a character. An error if that depends on
  // the other tokens. What the chain drops at the start of a text is not dropped here.
  [[nodiscard]] Result<std::string> bytes_of(std::string token) const;

 private:
  using Maker = std::function<std::unique_ptr<DecodeStage>(DecodeMode)>;
  Result<> add(const Json& spec, const ComponentPlace& place);
  Result<> grow(size_t made_bytes, size_t matched_bytes, const ComponentPlace& place);
  void add_bytes_stage(std::function<void(std::string&)> stage) { bytes_stages_.push_back(std::move(stage)); }
  void depend_on_others(std::string_view type) {
    if (dependent_.empty()) dependent_ = type;
  }
  std::vector<Maker> makers_;
  std::vector<std::function<void(std::string&)>> bytes_stages_;  // what bytes_of() does
  std::string dependent_;                                        // the type of a stage that it cannot do; empty: none
  bool is_fused_ = false;                                        // all tokens are one for the stages that follow
  size_t growth_ = 1;  // how many times longer the Replace stages make a text at most
};

}  // namespace mortise
