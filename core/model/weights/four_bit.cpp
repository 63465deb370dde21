// See four_bit.h.
#include "model/weights/four_bit.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "model/weights/weight_files.h"

namespace mortise {
namespace {

constexpr std::string_view kStatePart = ".quant_state.bitsandbytes__";
constexpr std::array kForms = {"nf4", "fp4"};
constexpr int64_t kMaxBlock = 1 << 20;
constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr int64_t kMxfp4Block = 32;
constexpr int kMxfp4Bias = 127;
constexpr std::array kMxfp4Values = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                     -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

// What X.quant_state.* says.
struct State {
  int64_t block = 0;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  int64_t nested_block = 0;  // 0: the scales are float32
  float nested_offset = 0;
};

const TensorView* find_state(const std::string& name, const FindTensor& find) {
  for (const char* form : kForms) {
    if (const TensorView* state = find(fmt::format("{}{}{}", name, kStatePart, form)); state != nullptr) return state;
  }
  return nullptr;
}

class Reader {
 public:
  Reader(const TensorView& view, const FindTensor& find, const std::string& where)
      : view_(view), find_(find), where_(where) {}

  Result<at::Tensor> read(at::IntArrayRef shape) {
    const State state = TRY(read_state());
    if (at::IntArrayRef(state.shape) != shape) {
      return fault(fmt::format("is a matrix of shape {}, the configuration asks for {}", shape_text(state.shape),
                               shape_text(shape)));
    }
    const int64_t count = *num_elements(state.shape);
    if (static_cast<int64_t>(view_.bytes.size()) != (count + 1) / 2)
      return fault(fmt::format("has {} bytes for {} values in four bits", view_.bytes.size(), count));
    const std::vector<float> scales = TRY(read_scales(state, (count + state.block - 1) / state.block));
    const std::vector<float> map = TRY(read_floats(".quant_map", 16));
    const at::Tensor values = at::empty(state.shape, at::kFloat);
    auto* const out = values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < count; ++i) {
      const auto byte = static_cast<uint8_t>(view_.bytes[static_cast<size_t>(i / 2)]);
      const size_t half = i % 2 == 0 ? byte >> 4U : byte & 15U;
      out[i] = map[half] * scales[static_cast<size_t>(i / state.block)];
    }
    return values.to(state.dtype);
  }

 private:
  [[nodiscard]] Error fault(const std::string& what) const {
    return Error{ErrorKind::kData, fmt::format("tensor {} {}", quote(view_.name), what), where_,
                 "download the folder again, or quantise it again with bitsandbytes"};
  }

  Result<const TensorView*> part(const char* ending) const {
    const TensorView* found = find_(view_.name + ending);
    if (found == nullptr) return fault(fmt::format("is in four bits, but {} is missing", quote(view_.name + ending)));
    return found;
  }

  Result<std::vector<float>> read_floats(const char* ending, int64_t count) const {
    const TensorView* const found = TRY(part(ending));
    if (found->dtype != DType::kF32 || found->bytes.size() != static_cast<size_t>(count) * sizeof(float)) {
      return fault(
          fmt::format("is in four bits, but {} does not hold {} numbers in F32", quote(view_.name + ending), count));
    }
    std::vector<float> values(static_cast<size_t>(count));
    std::memcpy(values.data(), found->bytes.data(), found->bytes.size());  // the file may place them anywhere
    return values;
  }

  Result<State> read_state() const {
    const TensorView& stored = *find_state(view_.name, find_);
    const std::string_view text(reinterpret_cast<const char*>(stored.bytes.data()), stored.bytes.size());
    const Json json = TRY(parse_json(text, fmt::format("{}: {}", where_, stored.name)));
    State state;
    const auto number = [&](const char* key, int64_t least, int64_t most) -> std::optional<int64_t> {
      const Json* value = json_find(json, key);
      if (value == nullptr || !value->is_number_integer()) return std::nullopt;
      const auto found = value->get<int64_t>();
      return found >= least && found <= most ? std::optional(found) : std::nullopt;
    };
    const auto block = number("blocksize", 1, kMaxBlock);
    const Json* dtype = json_find(json, "dtype");
    const Json* shape = json_find(json, "shape");
    if (!block || dtype == nullptr || !dtype->is_string() || shape == nullptr || !shape->is_array())
      return fault("has a quant_state without a valid blocksize, dtype or shape");
    state.block = *block;
    const Result<at::ScalarType> type = parse_scalar_type(dtype->get<std::string>());
    if (!type.ok()) return fault("has a quant_state with " + type.error().what);
    state.dtype = *type;
    for (const Json& size : *shape) {
      if (!size.is_number_integer()) return fault("has a quant_state whose shape is not a list of whole numbers");
      state.shape.push_back(size.get<int64_t>());
    }
    if (!num_elements(state.shape)) return fault("has a quant_state with an impossible shape");
    if (json_find(json, "nested_blocksize") == nullptr) return state;
    const auto nested = number("nested_blocksize", 1, kMaxBlock);
    const Json* offset = json_find(json, "nested_offset");
    if (!nested || offset == nullptr || !offset->is_number())
      return fault("has a quant_state without a valid nested_blocksize or nested_offset");
    state.nested_block = *nested;
    state.nested_offset = offset->get<float>();
    return state;
  }

  Result<std::vector<float>> read_scales(const State& state, int64_t count) const {
    if (state.nested_block == 0) return read_floats(".absmax", count);
    const TensorView* const stored = TRY(part(".absmax"));
    if (stored->dtype != DType::kU8 || stored->bytes.size() != static_cast<size_t>(count))
      return fault(fmt::format("is in four bits, but its absmax does not hold {} bytes", count));
    const std::vector<float> map = TRY(read_floats(".nested_quant_map", 256));
    const int64_t num_blocks = (count + state.nested_block - 1) / state.nested_block;
    const std::vector<float> nested = TRY(read_floats(".nested_absmax", num_blocks));
    std::vector<float> scales(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<size_t>(i);
      // Two roundings, as in bitsandbytes: no multiply-add in one instruction.
      volatile const float scale =
          map[static_cast<uint8_t>(stored->bytes[index])] * nested[static_cast<size_t>(i / state.nested_block)];
      scales[index] = scale + state.nested_offset;
    }
    return scales;
  }

  const TensorView& view_;
  const FindTensor& find_;
  const std::string& where_;
};

}  // namespace

bool is_four_bit_part(std::string_view name) {
  for (const std::string_view ending : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"}) {
    if (name.ends_with(ending)) return true;
  }
  return name.find(kStatePart) != std::string_view::npos;
}

bool is_four_bit(const TensorView& view, const FindTensor& find) { return find_state(view.name, find) != nullptr; }

Result<at::Tensor> read_four_bit(const TensorView& view, at::IntArrayRef shape, const FindTensor& find,
                                 const std::string& where) {
  return Reader(view, find, where).read(shape);
}

std::string_view mxfp4_matrix(std::string_view name) {
  for (const std::string_view ending : {kBlocks, kScales}) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return {};
}

bool is_mxfp4_scales(std::string_view name) { return name.ends_with(kScales); }

Result<> read_mxfp4(const TensorView& blocks, const FindTensor& find, const std::string& where,
                    const at::Tensor& target) {
  const auto fault = [&](const std::string& what) {
    return Error{ErrorKind::kData, fmt::format("tensor {} {}", quote(blocks.name), what), where,
                 "download the folder again"};
  };
  const int64_t experts = target.size(0), in = target.size(1), out = target.size(2);
  if (in % kMxfp4Block != 0)
    return fault(fmt::format("is in MXFP4, but {} values do not fill whole blocks of {}", in, kMxfp4Block));
  const std::vector<int64_t> scale_shape = {experts, out, in / kMxfp4Block};
  std::vector<int64_t> shape = scale_shape;
  shape.push_back(kMxfp4Block / 2);
  if (blocks.dtype != DType::kU8 || blocks.shape != shape) {
    return fault(fmt::format("is {} {}, the configuration asks for U8 {}", dtype_name(blocks.dtype),
                             shape_text(blocks.shape), shape_text(shape)));
  }
  const std::string scale_name = std::string(mxfp4_matrix(blocks.name)) + std::string(kScales);
  const TensorView* const scales = find(scale_name);
  if (scales == nullptr) return fault(fmt::format("is in MXFP4, but {} is missing", quote(scale_name)));
  if (scales->dtype != DType::kU8 || scales->shape != scale_shape) {
    return fault(fmt::format("is in MXFP4, but {} is {} {} instead of U8 {}", quote(scale_name),
                             dtype_name(scales->dtype), shape_text(scales->shape), shape_text(scale_shape)));
  }
  const at::Tensor row = at::empty({in}, at::kFloat);
  auto* const values = row.mutable_data_ptr<float>();
  size_t block = 0;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; i += kMxfp4Block, ++block) {
        const int exponent = static_cast<int>(scales->bytes[block]) - kMxfp4Bias;
        for (size_t pair = 0; pair < kMxfp4Block / 2; ++pair) {
          const auto byte = static_cast<uint8_t>(blocks.bytes[block * (kMxfp4Block / 2) + pair]);
          float* const at = values + i + static_cast<int64_t>(2 * pair);
          at[0] = std::ldexp(kMxfp4Values[byte & 15U], exponent);
          at[1] = std::ldexp(kMxfp4Values[byte >> 4U], exponent);
        }
      }
      target.select(0, e).select(1, o).copy_(row);
    }
  }
  return {};
}

}  // namespace mortise
