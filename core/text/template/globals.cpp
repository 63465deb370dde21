// See globals.h.
#include "text/template/globals.h"

#include <fmt/core.h>
#include <algorithm>
#include <ctime>

#include "foundation/base/text.h"
#include "text/template/work.h"

namespace mortise::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // the sandbox's
constexpr size_t kMaxMessageBytes = 4096;

class Function final : public Callable {
 public:
  using Body = Result<Value> (*)(Interpreter&, const CallArgs&);
  Function(std::string name, Body body) : name_(std::move(name)), body_(body) {}
  Result<Value> call(Interpreter& interpreter, CallArgs args) const override { return body_(interpreter, args); }
  [[nodiscard]] std::string type_name() const override { return "function"; }
  [[nodiscard]] std::string repr() const override { return fmt::format("<function {}>", name_); }

 private:
  std::string name_;
  Body body_;
};

Result<Value> range(Interpreter& /*interpreter*/, const CallArgs& args) {
  if (!args.keyword.empty()) return type_error("range() takes no keyword arguments");
  if (args.positional.empty()) return type_error("range expected at least 1 argument, got 0");
  const BoundArgs bound = TRY(BoundArgs::bind("range", args, {"start", "stop", "step"}, 1));
  const bool one = args.positional.size() == 1;
  const int64_t start = one ? 0 : TRY(bound.integer(0, 0));
  const int64_t stop = TRY(bound.integer(one ? 0 : 1, 0));
  const int64_t step = TRY(bound.integer(2, 1));
  if (step == 0) return type_error("range() arg 3 must not be zero");
  const Int span = step > 0 ? Int{stop} - start : Int{start} - stop;
  const Int stride = step > 0 ? Int{step} : -Int{step};
  const Int length = span > 0 ? (span + stride - 1) / stride : 0;
  if (length > kMaxRange) {
    return type_error(fmt::format("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange));
  }
  return Value(Range{start, stop, step, static_cast<int64_t>(length)});
}

// dict(), dict(mapping), dict(pairs), each with keywords.
Result<std::shared_ptr<Dict>> build_dict(const CallArgs& args) {
  auto dict = std::make_shared<Dict>();
  if (args.positional.size() > 1)
    return type_error("dict expected at most 1 argument, got " + std::to_string(args.positional.size()));
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is(Kind::kDict)) {
      TRY(use_work(8 * source.dict().size()));
      *dict = source.dict();
    } else {
      for (const Value& pair : TRY(items_of(source))) {
        TRY(use_work(8));
        const auto parts = TRY(items_of(pair));
        if (parts.size() != 2)
          return type_error(
              fmt::format("dictionary update sequence element has length {}; 2 is required", parts.size()));
        TRY(dict->set(parts[0], parts[1]));
      }
    }
  }
  for (const auto& [key, value] : args.keyword) TRY(dict->set(Value(key), value));
  return dict;
}

Result<Value> dict(Interpreter& /*interpreter*/, const CallArgs& args) {
  return Value(std::shared_ptr<const Dict>(TRY(build_dict(args))));
}

Result<Value> name_space(Interpreter& interpreter, const CallArgs& args) {
  const auto values = TRY(build_dict(args));
  std::vector<std::pair<std::string, Value>> named;
  for (const auto& [key, value] : values->items()) {
    const std::string name = TRY(to_text(key));
    if (name.starts_with('_')) {
      return type_error(fmt::format(
          "Chat templates cannot store underscore-prefixed attributes on a namespace, but got {}.", string_repr(name)));
    }
    named.emplace_back(name, value);
  }
  return interpreter.make_namespace(std::move(named));
}

Result<Value> raise_exception(Interpreter& /*interpreter*/, const CallArgs& args) {
  const BoundArgs bound = TRY(BoundArgs::bind("raise_exception", args, {"message"}, 1));
  std::string message = TRY(to_text(bound[0]));
  if (message.size() > kMaxMessageBytes) {
    message.resize(kMaxMessageBytes);
    while (find_invalid_utf8(message)) message.pop_back();
    message += "...";
  }
  return type_error(std::move(message));
}

Result<Value> strftime_now(Interpreter& interpreter, const CallArgs& args) {
  const BoundArgs bound = TRY(BoundArgs::bind("strftime_now", args, {"format"}, 1));
  const std::string format = TRY(bound.text(0, ""));
  if (format.empty()) return Value("");
  TRY(interpreter.charge(format.size(), 8));
  TRY(use_work(8 * format.size()));
  const auto seconds = static_cast<std::time_t>(interpreter.now_s);
  std::tm local{};
  localtime_r(&seconds, &local);
  std::string out(format.size() * 8 + 256, '\0');
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
#pragma GCC diagnostic pop
  return Value(std::move(out));
}

// joiner(sep): nothing at its first call, the separator from then on.
class Joiner final : public Callable {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  Result<Value> call(Interpreter& /*interpreter*/, CallArgs /*args*/) const override {
    if (std::exchange(used_, true)) return separator_;
    return Value("");
  }
  [[nodiscard]] std::string type_name() const override { return "Joiner"; }
  [[nodiscard]] int depth() const override { return depth_of(separator_) + 1; }
  [[nodiscard]] std::string repr() const override { return "<Joiner>"; }

 private:
  Value separator_;
  mutable bool used_ = false;
};

Result<Value> joiner(Interpreter& /*interpreter*/, const CallArgs& args) {
  const BoundArgs bound = TRY(BoundArgs::bind("joiner", args, {"sep"}, 0));
  return Value(std::shared_ptr<const Callable>(std::make_shared<Joiner>(bound.get(0, Value(", ")))));
}

}  // namespace

void define_globals(Interpreter& interpreter) {
  static constexpr std::pair<std::string_view, Function::Body> kFunctions[] = {{"range", range},
                                                                               {"dict", dict},
                                                                               {"namespace", name_space},
                                                                               {"raise_exception", raise_exception},
                                                                               {"strftime_now", strftime_now},
                                                                               {"joiner", joiner}};
  for (const auto& [name, body] : kFunctions) {
    interpreter.define(name,
                       Value(std::shared_ptr<const Callable>(std::make_shared<Function>(std::string(name), body))));
  }
}

}  // namespace mortise::jinja
