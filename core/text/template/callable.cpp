// See callable.h.
#include "text/template/callable.h"

#include <fmt/core.h>

#include "text/template/work.h"

namespace mortise::jinja {

size_t call_work(const Value& input, const CallArgs& args) {
  size_t work = kCallWork + work_over(input);
  for (const Value& arg : args.positional) work += arg.is(Kind::kString) ? work_over(arg) : 1;
  for (const auto& [name, arg] : args.keyword) work += name.size() + (arg.is(Kind::kString) ? work_over(arg) : 1);
  return work;
}

Result<BoundArgs> BoundArgs::bind(std::string_view function, const CallArgs& args,
                                  std::initializer_list<std::string_view> names, size_t num_required) {
  const std::string prefix = std::string(function) + "() ";
  const std::vector<std::string_view> params(names);
  if (args.positional.size() > params.size()) {
    return type_error(
        fmt::format("{}takes at most {} arguments ({} given)", prefix, params.size(), args.positional.size()));
  }
  BoundArgs bound;
  bound.values_ = args.positional;
  bound.given_.assign(args.positional.size(), true);
  bound.values_.resize(params.size());
  bound.given_.resize(params.size(), false);
  for (const auto& [key, value] : args.keyword) {
    size_t index = 0;
    while (index < params.size() && params[index] != key) ++index;
    if (index == params.size())
      return type_error(fmt::format("{}got an unexpected keyword argument '{}'", prefix, key));
    if (bound.given_[index]) return type_error(fmt::format("{}got multiple values for argument '{}'", prefix, key));
    bound.values_[index] = value;
    bound.given_[index] = true;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (!bound.given_[i])
      return type_error(fmt::format("{}missing 1 required positional argument: '{}'", prefix, params[i]));
  }
  return bound;
}

Result<int64_t> BoundArgs::integer(size_t index, int64_t fallback) const {
  if (!given_[index]) return fallback;
  const Value& value = values_[index];
  if (value.is(Kind::kUndefined)) return undefined_error(value);
  if (!value.is_integral())
    return type_error(fmt::format("'{}' object cannot be interpreted as an integer", type_name(value)));
  constexpr Int kLimit = Int{1} << 62;
  if (value.integer() > kLimit || value.integer() < -kLimit)
    return type_error("Python int too large to convert to C ssize_t");
  return static_cast<int64_t>(value.integer());
}

Result<bool> BoundArgs::flag(size_t index, bool fallback) const {
  if (!given_[index]) return fallback;
  return truth(values_[index]);
}

Result<std::string> BoundArgs::text(size_t index, std::string_view fallback) const {
  if (!given_[index]) return std::string(fallback);
  const Value& value = values_[index];
  if (value.is(Kind::kUndefined)) return undefined_error(value);
  if (!value.is(Kind::kString))
    return type_error(fmt::format("argument {} must be str, not {}", index + 1, type_name(value)));
  return value.string();
}

}  // namespace mortise::jinja
