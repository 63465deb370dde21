// SentencePiece model files (tokenizer.model): what encoding needs of them, read from protobuf's wire format.
//
// Strict: every length is checked, a known field of another wire type is refused; unknown fields are passed over, as
// protobuf does. Cost: one pass, a copy of the pieces. Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

struct SentencePieceFile {
  enum class PieceType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  enum class ModelType : int32_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

  std::vector<Piece> pieces;  // by id
  // trainer_spec
  ModelType model_type = ModelType::kUnigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  int64_t bos_id = 1;
  int64_t eos_id = 2;
  int64_t pad_id = -1;
  // normalizer_spec
  std::string charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  // denormalizer_spec
  std::string denormalizer_charsmap;
};

// `file` is named in errors.
Result<SentencePieceFile> parse_sentencepiece_file(std::string_view bytes, std::string_view file);

}  // namespace mortise
