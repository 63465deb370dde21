// Reader and writer of safetensors; the format is drawn in safetensors.h.
#include "foundation/formats/safetensors.h"

#include <fmt/core.h>
#include <algorithm>
#include <bit>
#include <cstring>

#include "foundation/base/limits.h"
#include "foundation/base/rename_target.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"

namespace mortise {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are used as they lie in the file");

constexpr size_t kPrefixBytes = 8;

Error refuse(std::string what, std::string_view where, uint64_t offset) {
  return {ErrorKind::kData, fmt::format("{} (at byte {})", what, offset), std::string(where),
          "the file is damaged or not safetensors: fetch or write it again"};
}

// Position in the file at which the entry of `name` begins, for errors; the header's start where it is escaped.
uint64_t offset_of_key(std::string_view header, std::string_view name) {
  const size_t at = header.find(fmt::format("\"{}\"", name));
  return kPrefixBytes + (at == std::string_view::npos ? 0 : at);
}

struct Span {
  uint64_t begin;
  uint64_t end;
};

class HeaderReader {
 public:
  HeaderReader(std::string_view header, std::span<const std::byte> data, std::string_view where)
      : header_(header), data_(data), where_(where) {}

  Result<SafetensorsContent> read() {
    if (!header_.starts_with('{')) return refuse("the header does not start with '{'", where_, kPrefixBytes);
    size_t offset = 0;
    Result<Json> parsed = parse_json(header_, where_, {.error_offset = &offset});
    if (!parsed.ok()) return refuse("header of safetensors: " + parsed.error().what, where_, kPrefixBytes + offset);
    if (!parsed->is_object()) return refuse("the header is not an object", where_, kPrefixBytes);
    SafetensorsContent content;
    for (const auto& [name, value] : parsed->get_ref<const Json::object_t&>()) {
      if (name == "__metadata__")
        TRY(read_metadata(value, &content));
      else
        content.tensors.push_back(TRY(read_tensor(name, value)));
    }
    TRY(check_layout(&content));
    return content;
  }

 private:
  Error bad(std::string_view name, std::string_view problem) const {
    return refuse(fmt::format("tensor {} {}", quote(name), problem), where_, offset_of_key(header_, name));
  }

  Result<> read_metadata(const Json& value, SafetensorsContent* content) {
    if (!value.is_object())
      return refuse("'__metadata__' is not an object", where_, offset_of_key(header_, "__metadata__"));
    for (const auto& [key, text] : value.get_ref<const Json::object_t&>()) {
      if (!text.is_string())
        return refuse(fmt::format("'__metadata__' entry {} is not a text", quote(key)), where_,
                      offset_of_key(header_, key));
      content->metadata.emplace(key, text.get_ref<const std::string&>());
    }
    return {};
  }

  Result<TensorView> read_tensor(const std::string& name, const Json& value) {
    if (!value.is_object()) return bad(name, "is not described by an object");
    for (const auto& member : value.get_ref<const Json::object_t&>()) {
      if (member.first != "dtype" && member.first != "shape" && member.first != "data_offsets")
        return bad(name, "has the unknown member " + quote(member.first));
    }
    const Json* dtype_text = json_find(value, "dtype");
    const Json* shape = json_find(value, "shape");
    const Json* offsets = json_find(value, "data_offsets");
    if (dtype_text == nullptr || !dtype_text->is_string()) return bad(name, "has no dtype");
    const auto dtype = parse_dtype(dtype_text->get_ref<const std::string&>());
    if (!dtype) return bad(name, "has the unknown dtype " + quote(dtype_text->get_ref<const std::string&>()));
    if (shape == nullptr || !shape->is_array()) return bad(name, "has no shape");
    if (shape->size() > limits::kMaxTensorRank)
      return bad(name, fmt::format("has more than {} axes", limits::kMaxTensorRank));
    TensorView tensor{name, *dtype, {}, {}, nullptr};
    for (const Json& size : *shape) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t{INT64_MAX})
        return bad(name, "has a shape that is not made of whole numbers >= 0");
      tensor.shape.push_back(size.get<int64_t>());
    }
    const auto count = num_elements(tensor.shape);
    uint64_t size_bytes = 0;
    if (!count || __builtin_mul_overflow(static_cast<uint64_t>(*count), dtype_bytes(*dtype), &size_bytes))
      return bad(name, "has a shape whose product overflows");
    if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
        !(*offsets)[1].is_number_unsigned())
      return bad(name, "has no pair of data_offsets");
    const Span span{(*offsets)[0].get<uint64_t>(), (*offsets)[1].get<uint64_t>()};
    if (span.begin > span.end) return bad(name, "has data_offsets that end before they begin");
    if (span.end > data_.size())
      return bad(name,
                 fmt::format("ends at data offset {}, but the file holds {} bytes of data", span.end, data_.size()));
    if (span.end - span.begin != size_bytes)
      return bad(name, fmt::format("has {} bytes, its dtype and shape need {}", span.end - span.begin, size_bytes));
    tensor.bytes = data_.subspan(span.begin, size_bytes);
    return tensor;
  }

  // Sorted by place, every tensor begins where the one before it ended, and the last ends the file.
  Result<> check_layout(SafetensorsContent* content) {
    auto& tensors = content->tensors;
    const auto begin_of = [&](const TensorView& tensor) {
      return static_cast<uint64_t>(tensor.bytes.data() - data_.data());
    };
    std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
      // An empty tensor sorts before the one that begins at the same place.
      return a.bytes.data() != b.bytes.data() ? a.bytes.data() < b.bytes.data() : a.bytes.size() < b.bytes.size();
    });
    uint64_t end = 0;
    for (const TensorView& tensor : tensors) {
      const uint64_t begin = begin_of(tensor);
      if (begin != end)
        return bad(tensor.name, begin < end ? "overlaps the tensor before it" : "leaves a hole before it");
      end = begin + tensor.bytes.size();
    }
    if (end != data_.size())
      return refuse(std::to_string(data_.size() - end) + " bytes after the last tensor", where_,
                    kPrefixBytes + header_.size() + end);
    return {};
  }

  std::string_view header_;
  std::span<const std::byte> data_;
  std::string_view where_;
};

// Place of a dtype in the reference writer's order (widest first): the same tensors give the same file.
int write_rank(DType dtype) {
  switch (dtype) {
    case DType::kU64:
      return 0;
    case DType::kI64:
      return 1;
    case DType::kF64:
      return 2;
    case DType::kF32:
      return 3;
    case DType::kU32:
      return 4;
    case DType::kI32:
      return 5;
    case DType::kBF16:
      return 6;
    case DType::kF16:
      return 7;
    case DType::kU16:
      return 8;
    case DType::kI16:
      return 9;
    case DType::kI8:
      return 10;
    case DType::kU8:
      return 11;
    case DType::kBool:
      return 12;
  }
  return 13;
}

Error bad_tensor(const TensorView& tensor, std::string_view problem) {
  return {ErrorKind::kInternal, fmt::format("cannot save tensor {}: {}", quote(tensor.name), problem), "", ""};
}

// What a file looks like that was named by mistake; empty if it may be safetensors. The first 8 bytes of safetensors are
// a length below 2^27, so the fifth of them is 0, which no text has.
std::string_view other_format(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 64));
  if (text.size() > kPrefixBytes && text.starts_with("PK\x03\x04") && text[kPrefixBytes] != '{')
    return "a zip file, as PyTorch writes it";
  if (text.size() < kPrefixBytes || file[4] == std::byte{0}) return "";
  const std::string_view begin = trim(text);
  if (begin.starts_with('{')) return "a JSON or JSONL file";
  if (begin.starts_with("\x80")) return "a Python pickle";
  if (begin.starts_with("GGUF")) return "a GGUF file";
  return begin.starts_with('<') ? "a web page" : "";
}

}  // namespace

Result<SafetensorsContent> parse_safetensors(std::span<const std::byte> file, std::string_view where) {
  if (const std::string_view other = other_format(file); !other.empty())
    return Error{ErrorKind::kData, fmt::format("this is {}, not safetensors", other), std::string(where),
                 "name a .safetensors file"};
  if (file.size() < kPrefixBytes) return refuse(fmt::format("a file of {} bytes is too short", file.size()), where, 0);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kPrefixBytes);
  if (header_bytes > limits::kMaxSafetensorsHeaderBytes)
    return refuse(fmt::format("the header claims {} bytes, at most {} are allowed", header_bytes,
                              limits::kMaxSafetensorsHeaderBytes),
                  where, 0);
  if (header_bytes > file.size() - kPrefixBytes)
    return refuse(fmt::format("the header claims {} bytes, the file has {}", header_bytes, file.size()), where, 0);
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + kPrefixBytes, header_bytes);
  return HeaderReader(header, file.subspan(kPrefixBytes + header_bytes), where).read();
}

Result<SafetensorsFile> SafetensorsFile::open(Env& env, const Path& path) {
  SafetensorsFile file;
  file.file_ = TRY(env.map_file(path));
  SafetensorsContent content = TRY(parse_safetensors(file.file_.bytes(), path.string()));
  file.tensors_ = std::move(content.tensors);
  file.metadata_ = std::move(content.metadata);
  for (size_t i = 0; i < file.tensors_.size(); ++i) file.by_name_.emplace(file.tensors_[i].name, i);
  return file;
}

std::string_view SafetensorsFile::head() const {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file_.bytes().data(), kPrefixBytes);
  return file_.text().substr(0, kPrefixBytes + header_bytes);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

Result<TensorView> SafetensorsFile::get(std::string_view name) const {
  if (const TensorView* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const TensorView& tensor : tensors_) names.push_back(tensor.name);
  return Error{ErrorKind::kData, "there is no tensor " + quote(name), path().string(), did_you_mean(name, names)};
}

namespace {

// What a file begins with, and its tensors in the order in which they follow.
struct FileLayout {
  std::string header;
  std::vector<const TensorView*> order;
  uint64_t data_bytes = 0;
};

uint64_t bytes_of(const TensorView& tensor) {
  return static_cast<uint64_t>(*num_elements(tensor.shape)) * dtype_bytes(tensor.dtype);
}

Result<> check_tensor(const TensorView& tensor) {
  if (tensor.name.empty() || tensor.name == "__metadata__" || find_invalid_utf8(tensor.name))
    return bad_tensor(tensor, "bad name");
  if (tensor.shape.size() > limits::kMaxTensorRank) return bad_tensor(tensor, "too many axes");
  if (!num_elements(tensor.shape) || (tensor.source == nullptr && bytes_of(tensor) != tensor.bytes.size()))
    return bad_tensor(tensor, "its bytes do not fit its shape");
  return {};
}

Result<FileLayout> layout_of(std::span<const TensorView> tensors, const std::map<std::string, std::string>& metadata) {
  FileLayout out;
  for (const TensorView& tensor : tensors) out.order.push_back(&tensor);
  std::sort(out.order.begin(), out.order.end(), [](const TensorView* a, const TensorView* b) {
    const int rank_a = write_rank(a->dtype), rank_b = write_rank(b->dtype);
    return rank_a != rank_b ? rank_a < rank_b : a->name < b->name;
  });
  // Written piece by piece, not as one JSON object: ordered objects look for each new key among all before it.
  std::string& header = out.header;
  header = "{";
  if (!metadata.empty()) header += fmt::format("\"__metadata__\":{},", dump_json(Json(metadata)));
  std::vector<std::string_view> names;
  for (const TensorView* tensor : out.order) {
    TRY(check_tensor(*tensor));
    names.push_back(tensor->name);
    const uint64_t end = out.data_bytes + bytes_of(*tensor);
    header +=
        fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}},", dump_json(Json(tensor->name)),
                    dtype_name(tensor->dtype), dump_json(Json(tensor->shape)), out.data_bytes, end);
    out.data_bytes = end;
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    return Error{ErrorKind::kInternal, "cannot save two tensors named " + quote(*twice), "", ""};
  if (header.back() == ',') header.pop_back();
  header += '}';
  while (header.size() % 8 != 0) header += ' ';
  if (header.size() > limits::kMaxSafetensorsHeaderBytes)
    return Error{ErrorKind::kInternal, "too many tensors for one safetensors file", "", ""};
  return out;
}

Result<> append_source(WritableFile& file, const TensorView& tensor) {
  const uint64_t size = bytes_of(tensor);
  std::vector<std::byte> piece;
  for (uint64_t begin = 0; begin < size; begin += piece.size()) {
    piece.resize(static_cast<size_t>(std::min<uint64_t>(size - begin, limits::kWriteChunkBytes)));
    TRY(tensor.source->read(begin, piece));
    TRY(file.append(piece));
  }
  return {};
}

}  // namespace

Result<> write_safetensors(WritableFile& file, std::span<const TensorView> tensors,
                           const std::map<std::string, std::string>& metadata) {
  Result<FileLayout> layout = layout_of(tensors, metadata);
  if (!layout.ok()) {
    if (layout.error().where.empty()) layout.error().where = file.path().string();
    return std::move(layout).error();
  }
  const uint64_t header_bytes = layout->header.size();
  TRY(file.append(std::as_bytes(std::span(&header_bytes, 1))));
  TRY(file.append_text(layout->header));
  for (const TensorView* tensor : layout->order)
    TRY(tensor->source != nullptr ? append_source(file, *tensor) : file.append(tensor->bytes));
  return {};
}

Result<uint64_t> measure_safetensors(std::span<const TensorView> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  const FileLayout layout = TRY(layout_of(tensors, metadata));
  return kPrefixBytes + layout.header.size() + layout.data_bytes;
}

Result<> write_safetensors_file(Env& env, const Path& path, std::span<const TensorView> tensors,
                                const std::map<std::string, std::string>& metadata) {
  const std::optional<Path> target = TRY(rename_target(env, path));
  if (!target) {
    const auto file = TRY(env.open_for_write(path, WriteMode::kTruncate));
    TRY(write_safetensors(*file, tensors, metadata));
    return file->close();
  }
  return write_whole(env, *target, [&](WritableFile& file) { return write_safetensors(file, tensors, metadata); });
}

}  // namespace mortise
