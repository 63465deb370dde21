// The tensors of a `plugin eval` inputs file as flat arrays: (B,T) padded rows become ragged rows of T tokens each.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/batch/layout.h"
#include "foundation/formats/safetensors.h"

namespace mortise {

class EvalTensors {
 public:
  // B and T are those of the tensor `in.MAIN`.
  static Result<EvalTensors> open(const std::filesystem::path& path, std::string_view main);

  [[nodiscard]] int64_t num_rows() const { return rows_; }
  [[nodiscard]] int64_t num_columns() const { return columns_; }
  [[nodiscard]] size_t num_tokens() const { return static_cast<size_t>(rows_ * columns_); }
  [[nodiscard]] Layout layout() const { return {offsets_, row_id_, group_index_}; }
  [[nodiscard]] bool has(std::string_view name) const;

  // [N] of in.NAME (B,T), or of (B,) repeated over the row. Absent: an error, or empty for optional().
  Result<std::vector<float>> tokens(std::string_view name);
  Result<std::vector<float>> optional_tokens(std::string_view name);
  // [N] of in.NAME, with values 0 and 1 only. All 1 if it is absent and not mandatory.
  Result<std::vector<uint8_t>> mask(std::string_view name, bool mandatory);
  // [B] of in.NAME (B,); empty where absent.
  Result<std::vector<float>> optional_rows(std::string_view name);
  // The same of flags, 0 or 1.
  Result<std::vector<uint8_t>> optional_row_flags(std::string_view name);
  // The values of in.NAME (K,); empty where absent.
  Result<std::vector<float>> optional_vector(std::string_view name);
  // The values of in.NAME (B,K) and K; empty where absent.
  struct Matrix {
    std::vector<float> values;
    int64_t num_columns = 0;
  };
  Result<Matrix> optional_matrix(std::string_view name);
  // An error for any in.NAME that nothing reads.
  [[nodiscard]] Result<> all_used() const;
  // An error without in.group_index: each row would be its own prompt, and the numbers would differ.
  [[nodiscard]] Result<> need_groups(const std::string& who) const;
  // An error at the first unmasked token of in.NAME [N] that is NaN or, where they are refused, infinite.
  enum class Infinities { kRefused, kAllowed };
  [[nodiscard]] Result<> check_values(std::string_view name, std::span<const float> values,
                                      std::span<const uint8_t> mask, Infinities infinities) const;

 private:
  explicit EvalTensors(SafetensorsFile file) : file_(std::move(file)) {}
  const TensorView* look_up(std::string_view name);
  [[nodiscard]] Error bad(std::string_view name, std::string what) const;
  Result<std::vector<float>> floats(const TensorView& tensor) const;
  [[nodiscard]] Error holds(std::string_view name, double value, size_t at, int64_t width, std::string_view must) const;
  Result<std::vector<uint8_t>> flags(std::string_view name, std::span<const float> values, int64_t width) const;
  Result<> read_groups();

  SafetensorsFile file_;
  int64_t rows_ = 0, columns_ = 0;
  std::vector<int64_t> offsets_, row_id_, group_index_;
  std::set<std::string, std::less<>> asked_;
};

// NAME (B,T) tensors to a file.
Result<> write_eval_outputs(const std::filesystem::path& path, std::span<const TensorView> tensors);

}  // namespace mortise
