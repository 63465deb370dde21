// See sentencepiece_file.h. Field numbers: sentencepiece_model.proto.
#include "text/tokenizer/sentencepiece_file.h"

#include <fmt/core.h>

#include <cmath>
#include <protozero/pbf_reader.hpp>

#include "foundation/base/text.h"

namespace mortise {
namespace {

using WireType = protozero::pbf_wire_type;

const char* meaning_of(const protozero::exception& fault) {
  if (dynamic_cast<const protozero::varint_too_long_exception*>(&fault) != nullptr)
    return "a number has more than ten bytes";
  if (dynamic_cast<const protozero::unknown_pbf_wire_type_exception*>(&fault) != nullptr)
    return "a field has an unknown wire type";
  if (dynamic_cast<const protozero::invalid_tag_exception*>(&fault) != nullptr) return "a field has no valid number";
  return "a field reaches over its message's end";
}

// The fields of one message in file order: protozero's reader, with errors that name the byte.
class MessageReader {
 public:
  MessageReader(std::string_view bytes, const char* file_begin, std::string_view file)
      : reader_(bytes.data(), bytes.size()), file_begin_(file_begin), file_(file) {}

  // False at the end. After true, one of the functions below must take the field.
  Result<bool> next() {
    const char* const begin = position();
    return guarded([&]() -> Result<bool> {
      if (!reader_.next()) return false;
      if (!has_32_bits(begin, position())) return fail("a field has no valid number");
      return true;
    });
  }
  [[nodiscard]] uint64_t number() const { return reader_.tag(); }

  Result<> skip() {
    return guarded([&]() -> Result<> {
      if (reader_.has_wire_type(WireType::length_delimited)) {
        (void)TRY(view());
      } else {
        reader_.skip();
      }
      return {};
    });
  }
  Result<std::string_view> bytes(const char* name) {
    TRY(expect(WireType::length_delimited, name));
    return guarded([&] { return view(); });
  }
  Result<std::string> text(const char* name) {
    const std::string_view bytes = TRY(this->bytes(name));
    if (find_invalid_utf8(bytes)) return fail(fmt::format("'{}' is not UTF-8", name));
    return std::string(bytes);
  }
  Result<MessageReader> message(const char* name) { return MessageReader(TRY(bytes(name)), file_begin_, file_); }
  Result<int64_t> integer(const char* name) {
    TRY(expect(WireType::varint, name));
    return guarded([&]() -> Result<int64_t> { return reader_.get_int64(); });
  }
  Result<bool> flag(const char* name) { return TRY(integer(name)) != 0; }
  Result<float> real(const char* name) {
    TRY(expect(WireType::fixed32, name));
    return guarded([&]() -> Result<float> { return reader_.get_float(); });
  }

  [[nodiscard]] Error fail(const std::string& what) const {
    return Error{ErrorKind::kData,
                 fmt::format("no SentencePiece model, or a damaged one: {} at byte {}", what, position() - file_begin_),
                 std::string(file_),
                 "fetch the file again; a file of tiktoken's kind needs tokenizer.json, which transformers writes"};
  }

 private:
  [[nodiscard]] const char* position() const { return reader_.data().data(); }

  // protozero keeps the low 32 bits of keys and lengths. A longer number must be an error and not another number.
  static bool has_32_bits(const char* begin, const char* end) {
    return end - begin < 5 || (end - begin == 5 && static_cast<uint8_t>(begin[4]) <= 0x0F);
  }
  Result<std::string_view> view() {
    const char* const begin = position();
    const protozero::data_view view = reader_.get_view();
    if (!has_32_bits(begin, view.data())) return fail("a field reaches over its message's end");
    return std::string_view(view.data(), view.size());
  }
  Result<> expect(WireType type, const char* name) const {
    if (reader_.has_wire_type(type)) return {};
    return fail(fmt::format("'{}' has the wrong wire type", name));
  }
  template <class Read>
  auto guarded(const Read& read) -> decltype(read()) {
    try {
      return read();
    } catch (const protozero::exception& e) {
      return fail(meaning_of(e));
    }
  }

  protozero::pbf_reader reader_;
  const char* file_begin_;
  std::string_view file_;
};

Result<SentencePieceFile::Piece> read_piece(MessageReader reader) {
  SentencePieceFile::Piece piece;
  while (TRY(reader.next())) {
    if (reader.number() == 1) {
      piece.text = TRY(reader.text("piece"));
    } else if (reader.number() == 2) {
      piece.score = TRY(reader.real("score"));
      if (!std::isfinite(piece.score)) return reader.fail("a score is not finite");
    } else if (reader.number() == 3) {
      const int64_t type = TRY(reader.integer("type"));
      if (type < 1 || type > 6) return reader.fail(fmt::format("a piece is of the unknown type {}", type));
      piece.type = static_cast<SentencePieceFile::PieceType>(type);
    } else {
      TRY(reader.skip());
    }
  }
  return piece;
}

Result<> read_trainer_spec(MessageReader reader, SentencePieceFile& out) {
  while (TRY(reader.next())) {
    switch (reader.number()) {
      case 3: {
        const int64_t type = TRY(reader.integer("model_type"));
        if (type < 1 || type > 4) return reader.fail(fmt::format("the model is of the unknown type {}", type));
        out.model_type = static_cast<SentencePieceFile::ModelType>(type);
        break;
      }
      case 24:
        out.treat_whitespace_as_suffix = TRY(reader.flag("treat_whitespace_as_suffix"));
        break;
      case 35:
        out.byte_fallback = TRY(reader.flag("byte_fallback"));
        break;
      case 41:
        out.bos_id = TRY(reader.integer("bos_id"));
        break;
      case 42:
        out.eos_id = TRY(reader.integer("eos_id"));
        break;
      case 43:
        out.pad_id = TRY(reader.integer("pad_id"));
        break;
      default:
        TRY(reader.skip());
    }
  }
  return {};
}

Result<> read_normalizer_spec(MessageReader reader, SentencePieceFile& out) {
  while (TRY(reader.next())) {
    switch (reader.number()) {
      case 2:
        out.charsmap = TRY(reader.bytes("precompiled_charsmap"));
        break;
      case 3:
        out.add_dummy_prefix = TRY(reader.flag("add_dummy_prefix"));
        break;
      case 4:
        out.remove_extra_whitespaces = TRY(reader.flag("remove_extra_whitespaces"));
        break;
      case 5:
        out.escape_whitespaces = TRY(reader.flag("escape_whitespaces"));
        break;
      default:
        TRY(reader.skip());
    }
  }
  return {};
}

Result<> read_denormalizer_spec(MessageReader reader, SentencePieceFile& out) {
  while (TRY(reader.next())) {
    if (reader.number() == 2) {
      out.denormalizer_charsmap = TRY(reader.bytes("precompiled_charsmap"));
    } else {
      TRY(reader.skip());
    }
  }
  return {};
}

}  // namespace

Result<SentencePieceFile> parse_sentencepiece_file(std::string_view bytes, std::string_view file) {
  SentencePieceFile out;
  MessageReader reader(bytes, bytes.data(), file);
  while (TRY(reader.next())) {
    if (reader.number() < 1 || reader.number() > 5 || reader.number() == 4) {
      TRY(reader.skip());
      continue;
    }
    const uint64_t number = reader.number();
    const MessageReader part = TRY(reader.message("a part of the model"));
    if (number == 1) {
      out.pieces.push_back(TRY(read_piece(part)));
    } else if (number == 2) {
      TRY(read_trainer_spec(part, out));
    } else if (number == 3) {
      TRY(read_normalizer_spec(part, out));
    } else {
      TRY(read_denormalizer_spec(part, out));
    }
  }
  if (out.pieces.empty()) return reader.fail("it holds no pieces");
  return out;
}

}  // namespace mortise
