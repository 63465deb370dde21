// Reads the tensors of a `plugin eval` file and turns padded rows into ragged rows.
#include "eval_tensors.h"

#include <fmt/core.h>
#include <cmath>
#include <cstring>
#include <numeric>

#include "foundation/base/text.h"

namespace mortise {
namespace {

template <class T>
std::vector<float> cast(const TensorView& tensor) {
  std::vector<float> out(tensor.bytes.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) {
    T value;  // by memcpy: a foreign file need not be aligned
    std::memcpy(&value, tensor.bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(value);
  }
  return out;
}

std::string shape_text(const TensorView& tensor) {
  std::vector<std::string> axes;
  for (const int64_t axis : tensor.shape) axes.push_back(std::to_string(axis));
  return fmt::format("({})", join(axes, ","));
}

}  // namespace

Error EvalTensors::bad(std::string_view name, std::string what) const {
  return {ErrorKind::kData, fmt::format("tensor 'in.{}' {}", name, what), file_.path().string(),
          "the command's --help lists names and shapes"};
}

const TensorView* EvalTensors::look_up(std::string_view name) {
  asked_.emplace(name);
  return file_.find("in." + std::string(name));
}

bool EvalTensors::has(std::string_view name) const { return file_.find("in." + std::string(name)) != nullptr; }

Result<EvalTensors> EvalTensors::open(const std::filesystem::path& path, std::string_view main) {
  EvalTensors out(TRY(SafetensorsFile::open(default_env(), path)));
  const TensorView* tensor = out.look_up(main);
  if (tensor == nullptr) return out.bad(main, "is missing");
  if (tensor->shape.size() != 2)
    return out.bad(main, fmt::format("has the shape {}, must be (B,T)", shape_text(*tensor)));
  out.rows_ = tensor->shape[0];
  out.columns_ = tensor->shape[1];
  for (int64_t i = 0; i <= out.rows_; ++i) out.offsets_.push_back(i * out.columns_);
  out.row_id_.resize(static_cast<size_t>(out.rows_));
  std::iota(out.row_id_.begin(), out.row_id_.end(), 0);
  TRY(out.read_groups());
  return out;
}

Result<> EvalTensors::read_groups() {
  group_index_ = row_id_;  // without groups every row is its own
  const TensorView* tensor = look_up("group_index");
  if (tensor == nullptr) return {};
  if (tensor->dtype != DType::kI64 && tensor->dtype != DType::kI32) return bad("group_index", "must be I64 or I32");
  if (tensor->shape != std::vector<int64_t>{rows_})
    return bad("group_index", fmt::format("has the shape {}, must be (B,)", shape_text(*tensor)));
  for (size_t i = 0; i < group_index_.size(); ++i) {
    int32_t narrow = 0;
    if (tensor->dtype == DType::kI64) {
      std::memcpy(&group_index_[i], tensor->bytes.data() + i * 8, 8);
    } else {
      std::memcpy(&narrow, tensor->bytes.data() + i * 4, 4);
      group_index_[i] = narrow;
    }
  }
  return {};
}

Result<std::vector<float>> EvalTensors::floats(const TensorView& tensor) const {
  switch (tensor.dtype) {
    case DType::kF32:
      return cast<float>(tensor);
    case DType::kF64:
      return cast<double>(tensor);
    case DType::kU8:
    case DType::kBool:
      return cast<uint8_t>(tensor);
    case DType::kI32:
      return cast<int32_t>(tensor);
    case DType::kI64:
      return cast<int64_t>(tensor);
    default:
      return bad(std::string_view(tensor.name).substr(3),
                 fmt::format("has the type {}, must be F32, F64, I32, I64, U8 or BOOL", dtype_name(tensor.dtype)));
  }
}

Result<std::vector<float>> EvalTensors::tokens(std::string_view name) {
  auto out = TRY(optional_tokens(name));
  if (out.empty() && look_up(name) == nullptr) return bad(name, "is missing");
  return out;
}

Result<std::vector<float>> EvalTensors::optional_tokens(std::string_view name) {
  const TensorView* tensor = look_up(name);
  if (tensor == nullptr) return std::vector<float>();
  const bool per_row = tensor->shape == std::vector<int64_t>{rows_};
  if (!per_row && tensor->shape != std::vector<int64_t>{rows_, columns_}) {
    return bad(name,
               fmt::format("has the shape {}, must be ({},{}) or ({})", shape_text(*tensor), rows_, columns_, rows_));
  }
  std::vector<float> values = TRY(floats(*tensor));
  if (!per_row) return values;
  std::vector<float> repeated;
  for (const float value : values) repeated.insert(repeated.end(), static_cast<size_t>(columns_), value);
  return repeated;
}

Result<std::vector<uint8_t>> EvalTensors::mask(std::string_view name, bool mandatory) {
  const std::vector<float> values = mandatory ? TRY(tokens(name)) : TRY(optional_tokens(name));
  if (values.empty()) return std::vector<uint8_t>(num_tokens(), 1);
  return flags(name, values, columns_);
}

Error EvalTensors::holds(std::string_view name, double value, size_t at, int64_t width, std::string_view must) const {
  const auto place = static_cast<int64_t>(at);
  std::string where = "row " + std::to_string(place / width);
  if (width > 1) where += ", token " + std::to_string(place % width);
  const std::string text = std::isnan(value) ? "nan" : format_f64(value);  // without its sign
  return bad(name, fmt::format("holds {} in {}, must be {}", text, where, must));
}

// NaN and numbers between would silently count as 1.
Result<std::vector<uint8_t>> EvalTensors::flags(std::string_view name, std::span<const float> values,
                                                int64_t width) const {
  std::vector<uint8_t> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0.0F && values[i] != 1.0F) return holds(name, static_cast<double>(values[i]), i, width, "0 or 1");
    out[i] = values[i] == 1.0F ? 1 : 0;
  }
  return out;
}

Result<> EvalTensors::check_values(std::string_view name, std::span<const float> values, std::span<const uint8_t> mask,
                                   Infinities infinities) const {
  const bool refused = infinities == Infinities::kRefused;
  for (size_t i = 0; i < values.size(); ++i) {
    if (mask[i] != 0 && (std::isnan(values[i]) || (refused && std::isinf(values[i]))))
      return holds(name, static_cast<double>(values[i]), i, columns_,
                   refused ? "finite at unmasked tokens" : "a number at unmasked tokens");
  }
  return {};
}

Result<> EvalTensors::need_groups(const std::string& who) const {
  if (has("group_index")) return {};
  return Error{ErrorKind::kData, who + " needs the tensor 'in.group_index'", file_.path().string(),
               "add it, the prompt of every row (B,) I64, or choose another"};
}

Result<std::vector<uint8_t>> EvalTensors::optional_row_flags(std::string_view name) {
  const std::vector<float> values = TRY(optional_rows(name));
  return flags(name, values, 1);
}

Result<std::vector<float>> EvalTensors::optional_rows(std::string_view name) {
  const TensorView* tensor = look_up(name);
  if (tensor == nullptr) return std::vector<float>();
  if (tensor->shape != std::vector<int64_t>{rows_})
    return bad(name, fmt::format("has the shape {}, must be ({})", shape_text(*tensor), rows_));
  return floats(*tensor);
}

Result<std::vector<float>> EvalTensors::optional_vector(std::string_view name) {
  const TensorView* tensor = look_up(name);
  if (tensor == nullptr) return std::vector<float>();
  if (tensor->shape.size() != 1)
    return bad(name, fmt::format("has the shape {}, must have one axis", shape_text(*tensor)));
  return floats(*tensor);
}

Result<EvalTensors::Matrix> EvalTensors::optional_matrix(std::string_view name) {
  const TensorView* tensor = look_up(name);
  if (tensor == nullptr) return Matrix{};
  if (tensor->shape.size() != 2 || tensor->shape[0] != rows_)
    return bad(name, fmt::format("has the shape {}, must be ({},K)", shape_text(*tensor), rows_));
  return Matrix{TRY(floats(*tensor)), tensor->shape[1]};
}

Result<> EvalTensors::all_used() const {
  for (const TensorView& tensor : file_.tensors()) {
    if (!tensor.name.starts_with("in.")) continue;
    const std::string name = tensor.name.substr(3);
    if (asked_.contains(name)) continue;
    const std::vector<std::string> known(asked_.begin(), asked_.end());
    std::string next = did_you_mean(name, known);
    if (next.empty()) next = "this kind reads: " + join(known, ", ");
    return Error{ErrorKind::kData, "unknown tensor " + quote(tensor.name), file_.path().string(), std::move(next)};
  }
  return {};
}

Result<> write_eval_outputs(const std::filesystem::path& path, std::span<const TensorView> tensors) {
  return write_safetensors_file(default_env(), path, tensors);
}

}  // namespace mortise
