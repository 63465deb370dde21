// See sentencepiece_file.h. Field numbers: sentencepiece_model.proto.
#include "text/tokenizer/sentencepiece_file.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "foundation/base/text.h"

namespace mortise {
namespace {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint64_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t value = 0;      // of a number
  std::string_view bytes;  // of kBytes
};

// The fields of one message, in the order they stand.
class MessageReader {
 public:
  MessageReader(std::string_view bytes, const char* file_begin, std::string_view file)
      : bytes_(bytes), file_begin_(file_begin), file_(file) {}

  // Nothing at the end.
  Result<std::optional<Field>> next() {
    if (pos_ == bytes_.size()) return std::optional<Field>();
    Field field;
    const uint64_t key = TRY(varint());
    field.number = key >> 3;
    field.type = static_cast<WireType>(key & 7);
    if (field.number == 0 || field.number > 0x1FFFFFFF) return fail("a field has no valid number");
    switch (field.type) {
      case WireType::kVarint:
        field.value = TRY(varint());
        break;
      case WireType::kFixed64:
        field.value = TRY(fixed(8));
        break;
      case WireType::kFixed32:
        field.value = TRY(fixed(4));
        break;
      case WireType::kBytes: {
        const uint64_t size = TRY(varint());
        if (size > bytes_.size() - pos_) return fail("a field reaches over its message's end");
        field.bytes = bytes_.substr(pos_, size);
        pos_ += size;
        break;
      }
      default:
        return fail("a field has an unknown wire type");
    }
    return std::optional<Field>(field);
  }

  [[nodiscard]] MessageReader inside(const Field& field) const { return {field.bytes, file_begin_, file_}; }

  Result<> expect(const Field& field, WireType type, const char* name) const {
    if (field.type == type) return {};
    return fail("'" + std::string(name) + "' has the wrong wire type");
  }
  Result<std::string> text(const Field& field, const char* name) const {
    TRY(expect(field, WireType::kBytes, name));
    if (find_invalid_utf8(field.bytes)) return fail("'" + std::string(name) + "' is not UTF-8");
    return std::string(field.bytes);
  }
  Result<bool> flag(const Field& field, const char* name) const {
    TRY(expect(field, WireType::kVarint, name));
    return field.value != 0;
  }
  Result<int64_t> number(const Field& field, const char* name) const {
    TRY(expect(field, WireType::kVarint, name));
    return static_cast<int64_t>(field.value);
  }

  [[nodiscard]] Error fail(const std::string& what) const {
    const auto offset = bytes_.data() - file_begin_ + static_cast<std::ptrdiff_t>(pos_);
    return Error{ErrorKind::kData,
                 "no SentencePiece model, or a damaged one: " + what + " at byte " + std::to_string(offset),
                 std::string(file_),
                 "fetch the file again; a file of tiktoken's kind needs tokenizer.json, which transformers writes"};
  }

 private:
  Result<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (pos_ == bytes_.size()) return fail("a number is cut off");
      const auto byte = static_cast<uint8_t>(bytes_[pos_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return fail("a number has more than ten bytes");
  }
  Result<uint64_t> fixed(size_t size) {
    if (bytes_.size() - pos_ < size) return fail("a number is cut off");
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes_[pos_ + i])) << (8 * i);
    pos_ += size;
    return value;
  }

  std::string_view bytes_;
  const char* file_begin_;
  std::string_view file_;
  size_t pos_ = 0;
};

Result<SentencePieceFile::Piece> read_piece(MessageReader reader) {
  SentencePieceFile::Piece piece;
  while (const std::optional<Field> field = TRY(reader.next())) {
    if (field->number == 1) {
      piece.text = TRY(reader.text(*field, "piece"));
    } else if (field->number == 2) {
      TRY(reader.expect(*field, WireType::kFixed32, "score"));
      const auto bits = static_cast<uint32_t>(field->value);
      std::memcpy(&piece.score, &bits, sizeof bits);
      if (!std::isfinite(piece.score)) return reader.fail("a score is not finite");
    } else if (field->number == 3) {
      const int64_t type = TRY(reader.number(*field, "type"));
      if (type < 1 || type > 6) return reader.fail("a piece is of the unknown type " + std::to_string(type));
      piece.type = static_cast<SentencePieceFile::PieceType>(type);
    }
  }
  return piece;
}

Result<> read_trainer_spec(MessageReader reader, SentencePieceFile& out) {
  while (const std::optional<Field> field = TRY(reader.next())) {
    switch (field->number) {
      case 3: {
        const int64_t type = TRY(reader.number(*field, "model_type"));
        if (type < 1 || type > 4) return reader.fail("the model is of the unknown type " + std::to_string(type));
        out.model_type = static_cast<SentencePieceFile::ModelType>(type);
        break;
      }
      case 24:
        out.treat_whitespace_as_suffix = TRY(reader.flag(*field, "treat_whitespace_as_suffix"));
        break;
      case 35:
        out.byte_fallback = TRY(reader.flag(*field, "byte_fallback"));
        break;
      case 41:
        out.bos_id = TRY(reader.number(*field, "bos_id"));
        break;
      case 42:
        out.eos_id = TRY(reader.number(*field, "eos_id"));
        break;
      case 43:
        out.pad_id = TRY(reader.number(*field, "pad_id"));
        break;
      default:
        break;
    }
  }
  return {};
}

Result<> read_normalizer_spec(MessageReader reader, SentencePieceFile& out) {
  while (const std::optional<Field> field = TRY(reader.next())) {
    switch (field->number) {
      case 2:
        TRY(reader.expect(*field, WireType::kBytes, "precompiled_charsmap"));
        out.charsmap = field->bytes;
        break;
      case 3:
        out.add_dummy_prefix = TRY(reader.flag(*field, "add_dummy_prefix"));
        break;
      case 4:
        out.remove_extra_whitespaces = TRY(reader.flag(*field, "remove_extra_whitespaces"));
        break;
      case 5:
        out.escape_whitespaces = TRY(reader.flag(*field, "escape_whitespaces"));
        break;
      default:
        break;
    }
  }
  return {};
}

Result<> read_denormalizer_spec(MessageReader reader, SentencePieceFile& out) {
  while (const std::optional<Field> field = TRY(reader.next())) {
    if (field->number != 2) continue;
    TRY(reader.expect(*field, WireType::kBytes, "precompiled_charsmap"));
    out.denormalizer_charsmap = field->bytes;
  }
  return {};
}

}  // namespace

Result<SentencePieceFile> parse_sentencepiece_file(std::string_view bytes, std::string_view file) {
  SentencePieceFile out;
  MessageReader reader(bytes, bytes.data(), file);
  while (const std::optional<Field> field = TRY(reader.next())) {
    if (field->number < 1 || field->number > 5 || field->number == 4) continue;
    TRY(reader.expect(*field, WireType::kBytes, "a part of the model"));
    if (field->number == 1) {
      out.pieces.push_back(TRY(read_piece(reader.inside(*field))));
    } else if (field->number == 2) {
      TRY(read_trainer_spec(reader.inside(*field), out));
    } else if (field->number == 3) {
      TRY(read_normalizer_spec(reader.inside(*field), out));
    } else {
      TRY(read_denormalizer_spec(reader.inside(*field), out));
    }
  }
  if (out.pieces.empty()) return reader.fail("it holds no pieces");
  return out;
}

}  // namespace mortise
