// column: the reward is in the data row.
//
// `key` names a number, or a list of numbers indexed by the sample's position in its group. null means "does not
// apply", and so does a row without the column. For replayed runs, precomputed scores and tests.
#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"

namespace {

struct Column : mortise::Reward {
  static constexpr const char* summary = "number, or list of numbers by sample, from a data column";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string key = param("key", "score", "data column, or a dotted path into a JSON column").column();

  double score(const mortise::Row& row) const {
    const auto value = mortise::find_value(row, key);
    if (!value) return mortise::not_applicable;
    if (!value->is_array()) return number(*value);
    const std::int64_t sample = row.sample_index();
    if (sample < 0 || sample >= std::int64_t(value->size())) {
      mortise::fail(MORTISE_OUT_OF_RANGE, "column '" + key + "' has " + std::to_string(value->size()) +
                                              " entries, but this is sample " + std::to_string(sample) + " (from 0)");
    }
    return number((*value)[std::size_t(sample)]);
  }

  double number(const nlohmann::json& value) const {
    if (value.is_null()) return mortise::not_applicable;
    if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
    if (!value.is_number()) {
      mortise::fail(MORTISE_INVALID_ARGUMENT, "column '" + key + "' holds " + value.dump() + ", not a number");
    }
    return value.get<double>();
  }
};

}  // namespace

MORTISE_REWARD("column", Column)
