// json_schema: is the completion JSON that fits a schema? 1 or 0.
//
// The JSON is the last ```json (or ```) block, else the whole completion. The schema is one for all rows, or one per
// row from a data column; schema.h says what of draft 2020-12 it may use.
#include <limits>
#include <optional>

#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"
#include "parse/json.h"
#include "schema.h"

namespace {

constexpr std::size_t kNone = std::string_view::npos;
constexpr int kMaxNesting = 1000;  // values are compared by recursion, which deeper ones would end

struct JsonSchema : mortise::Reward {
  static constexpr const char* summary = "the completion is JSON that fits a JSON Schema (draft 2020-12)";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string schema = param("schema", "", "the schema as JSON, for all rows");
  std::string column =
      param("column", "", "data column with each row's schema, or a dotted path; instead of schema").column();
  bool whole = param("whole", false, "the whole completion must be JSON: no fenced block, no words around it");
  double hit = param("hit", 1.0, "score of valid JSON");
  double miss = param("miss", 0.0, "score of JSON that does not fit the schema");
  double broken = param("broken", 0.0, "score of text that is not JSON");

  std::optional<mortise::Schema> common;

  void setup(mortise::Call) override {
    if (schema.empty() == column.empty())
      mortise::fail(MORTISE_INVALID_ARGUMENT, "give schema (one for all rows) or column (one per row)");
    if (!schema.empty()) common.emplace(parsed(schema));
  }

  double score(const mortise::Row& row) const {
    std::optional<mortise::Schema> own;
    if (!common) {
      const auto value = mortise::find_value(row, column);
      if (!value) return mortise::not_applicable;
      own.emplace(value->is_string() ? parsed(value->get<std::string>()) : *value);
    }
    const std::string_view text = json_of(row.completion());
    const auto value = mortise::parse::parse_json(text, limits());
    if (value) return (common ? *common : *own).fault(*value).empty() ? hit : miss;
    if (value.fault().kind != mortise::parse::JsonFault::Kind::kLimit) return broken;
    mortise::parse::JsonLimits any_depth;
    any_depth.max_depth = std::numeric_limits<int>::max();
    return mortise::parse::check_json(text, any_depth) ? broken : miss;
  }

 private:
  static mortise::parse::JsonLimits limits() {
    mortise::parse::JsonLimits limits;
    limits.max_depth = kMaxNesting;
    return limits;
  }

  static nlohmann::json parsed(const std::string& text) {
    auto value = mortise::parse::parse_json(text, limits());
    if (!value) mortise::fail(MORTISE_INVALID_ARGUMENT, "schema: not valid JSON: " + value.fault().to_string());
    return *std::move(value);
  }

  std::string_view json_of(std::string_view text) const {
    if (whole) return text;
    const std::size_t close = text.rfind("```");
    const std::size_t open = close == kNone || close == 0 ? kNone : text.rfind("```", close - 1);
    if (open == kNone) return text;
    std::string_view block = text.substr(open + 3, close - open - 3);
    const std::size_t line = block.find('\n');
    const bool has_name = line != kNone && block.substr(0, line).find_first_of("{[\"") == kNone;
    return has_name ? block.substr(line) : block;
  }
};

}  // namespace

MORTISE_REWARD("json_schema", JsonSchema)
