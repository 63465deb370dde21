// See state_files.h.
#include "checkpoint/state_files.h"

#include <fmt/core.h>
#include <algorithm>
#include <cmath>
#include <limits>

#include "foundation/base/hints.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"

namespace mortise {
namespace {

Json scalar_json(const StateScalar& scalar) {
  struct Visitor {
    Json operator()(bool value) const { return value; }
    Json operator()(int64_t value) const { return "i:" + std::to_string(value); }
    Json operator()(uint64_t value) const { return "u:" + std::to_string(value); }
    // The payload of a NaN is not kept; nothing reads it.
    Json operator()(double value) const { return "d:" + format_f64(value); }
    Json operator()(const std::string& value) const { return "t:" + value; }
  };
  return std::visit(Visitor{}, scalar);
}

std::optional<double> parse_any_double(std::string_view text) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "inf") return kInfinity;
  if (text == "-inf") return -kInfinity;
  if (text == "nan" || text == "-nan") return std::numeric_limits<double>::quiet_NaN();
  return parse_f64(text);
}

std::optional<StateScalar> parse_scalar(const Json& value) {
  if (value.is_boolean()) return StateScalar(value.get<bool>());
  if (!value.is_string()) return std::nullopt;
  const std::string_view text = value.get_ref<const std::string&>();
  if (text.size() < 2 || text[1] != ':') return std::nullopt;
  const std::string_view rest = text.substr(2);
  switch (text[0]) {
    case 'i':
      if (const auto number = parse_i64(rest)) return StateScalar(*number);
      return std::nullopt;
    case 'u':
      if (const auto number = parse_u64(rest)) return StateScalar(*number);
      return std::nullopt;
    case 'd':
      if (const auto number = parse_any_double(rest)) return StateScalar(*number);
      return std::nullopt;
    case 't':
      return StateScalar(std::string(rest));
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string state_json_text(const StateSnapshot& snapshot) {
  Json root = Json::object();
  for (const auto& [object, values] : snapshot.scalars) {
    Json members = Json::object();
    for (const auto& [key, value] : values) members[key] = scalar_json(value);
    root[object] = std::move(members);
  }
  return dump_json(root, 1) + "\n";
}

Result<StateSnapshot> parse_state(std::string_view json_text, std::span<const TensorView> tensors,
                                  std::string_view where) {
  const Json root = TRY(parse_json(json_text, where));
  StateSnapshot snapshot;
  if (!root.is_object())
    return Error{ErrorKind::kData, "the state is not an object", std::string(where), hints::kDamagedCheckpoint};
  for (const auto& [object, members] : root.get_ref<const Json::object_t&>()) {
    auto& values = snapshot.scalars[object];
    if (!members.is_object())
      return Error{ErrorKind::kData, fmt::format("state {} is not an object", quote(object)), std::string(where),
                   hints::kDamagedCheckpoint};
    for (const auto& [key, value] : members.get_ref<const Json::object_t&>()) {
      auto scalar = parse_scalar(value);
      if (!scalar)
        return Error{ErrorKind::kData, fmt::format("state {} cannot be read", quote(fmt::format("{}/{}", object, key))),
                     std::string(where), hints::kDamagedCheckpoint};
      values.emplace(key, *std::move(scalar));
    }
  }
  snapshot.tensors.assign(tensors.begin(), tensors.end());
  std::sort(snapshot.tensors.begin(), snapshot.tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return snapshot;
}

}  // namespace mortise
