// Reads golden tests, runs `mortise plugin eval` for each, and compares the outputs.
#include "packs/golden.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "foundation/base/private_folder.h"
#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"
#include "foundation/formats/safetensors.h"
#include "packs/toml_fields.h"
#include "plugin/worker/child.h"

namespace mortise {
namespace {

constexpr uint64_t kMaxLogBytes = 64 * 1024;

struct GoldenTest {
  std::string kind, plugin, inputs, expected;
  double tolerance = 1e-6;
  std::vector<std::string> settings;  // "clip=0.2"
};

Result<std::vector<std::string>> read_settings(const TomlFields& fields) {
  std::vector<std::string> out;
  const toml::node* node = fields.table().get("params");
  if (node == nullptr) return out;
  if (!node->is_table()) return fields.fault("'params' must be a table", node);
  for (const auto& [key, value] : *node->as_table()) {
    std::string text;
    if (const auto* word = value.as_string()) {
      text = word->get();
    } else if (const auto* number = value.as_integer()) {
      text = std::to_string(number->get());
    } else if (const auto* real = value.as_floating_point()) {
      text = format_f64(real->get());
    } else if (const auto* flag = value.as_boolean()) {
      text = flag->get() ? "true" : "false";
    } else {
      return fields.fault("a parameter is a text, a number or a truth value", &value);
    }
    out.push_back(fmt::format("{}={}", std::string(std::string_view(key)), text));
  }
  return out;
}

// A file that a test names lies next to it.
Result<> check_name(const TomlFields& fields, const std::string& name) {
  if (name.find('/') == std::string::npos && is_archive_path(name)) return {};
  return fields.fault(quote(name) + " is not the name of a file next to the test");
}

Result<GoldenTest> parse_test(std::string_view text, std::string_view where) {
  const toml::table table = TRY(parse_toml(text, where));
  const TomlFields fields(table, where, PackRule::kDescription);
  TRY(fields.only({"kind", "plugin", "inputs", "expected", "tolerance", "params"}));
  GoldenTest test;
  TRY(fields.text("kind", test.kind, true));
  TRY(fields.text("plugin", test.plugin, true));
  TRY(fields.text("inputs", test.inputs, true));
  TRY(fields.text("expected", test.expected, test.kind == "reward"));
  TRY(check_name(fields, test.inputs));
  if (!test.expected.empty()) TRY(check_name(fields, test.expected));
  if (const toml::node* node = table.get("tolerance"); node != nullptr) {
    const auto value = node->value<double>();
    if (!value || !(*value >= 0.0) || !std::isfinite(*value))
      return fields.fault("'tolerance' must be a number of at least 0", node);
    test.tolerance = *value;
  }
  test.settings = TRY(read_settings(fields));
  return test;
}

// The elements as numbers; nothing for a type that no plugin writes.
std::vector<double> numbers_of(const TensorView& tensor) {
  std::vector<double> out;
  const auto copy = [&](auto value) {  // a file of somebody else need not be aligned
    for (size_t at = 0; at < tensor.bytes.size(); at += sizeof(value)) {
      std::memcpy(&value, tensor.bytes.data() + at, sizeof(value));
      out.push_back(static_cast<double>(value));
    }
  };
  if (tensor.dtype == DType::kF32) copy(float{});
  if (tensor.dtype == DType::kF64) copy(double{});
  if (tensor.dtype == DType::kI64) copy(int64_t{});
  return out;
}

bool is_close(double expected, double got, double tolerance, double largest) {
  if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got);
  return expected == got || std::abs(expected - got) <= tolerance * std::max(1.0, largest);
}

std::string difference(const std::string& what, double expected, double got) {
  return fmt::format("{} is {}, expected {}", what, format_f64(got), format_f64(expected));
}

// The last line of what a failed child said.
std::string last_words(Env& env, const Path& log) {
  const auto text = env.read_file(log, kMaxLogBytes);
  std::string last;
  if (text.ok())
    for (const std::string_view line : split(*text, '\n'))
      if (!trim(line).empty()) last = trim(line).substr(0, 300);
  return last;
}

Result<std::string> run_one(Env& env, const Path& folder, const std::string& name, const Path& library,
                            const std::string& pack, const GoldenOptions& options) {
  const Path file = folder / name;
  const std::string text = TRY(env.read_file(file, kMaxDescriptionBytes));
  const GoldenTest test = TRY(parse_test(text, name));
  const Path inputs = file.parent_path() / test.inputs;
  const Path outputs = folder / (test.kind == "reward" ? "outputs.jsonl" : "outputs.safetensors");
  const Path log = folder / "log.txt";
  std::vector<std::string> words = {options.program.string(), "plugin", "eval", test.kind,
                                    fmt::format("{}/{}", pack, test.plugin)};
  words.insert(words.end(), {"--plugin", library.string(), "--inputs", inputs.string(), "--outputs", outputs.string()});
  for (const std::string& setting : test.settings) words.insert(words.end(), {"--set", setting});
  if (env.exists(outputs)) TRY(env.unlink(outputs));
  const ChildOutcome child = TRY(run_child(words, folder, log, options.timeout));
  if (child.timed_out) return fmt::format("it took longer than {} s", options.timeout.count() / 1000);
  if (child.code != 0) {
    const std::string how = child.code < 0 ? "it was ended by signal " + std::to_string(-child.code)
                                           : "it ended with code " + std::to_string(child.code);
    return fmt::format("{}: {}", how, last_words(env, log));
  }
  if (test.kind == "reward") return compare_rewards(env, file.parent_path() / test.expected, outputs, test.tolerance);
  return compare_tensors(env, inputs, outputs, test.tolerance);
}

Result<std::vector<double>> read_rewards(Env& env, const Path& path) {
  std::vector<double> out;
  JsonlReader reader = TRY(JsonlReader::open(env, path));
  while (true) {
    const auto row = TRY(reader.next());
    if (!row) return out;
    const Json* reward = json_find(row->value, "reward");
    if (reward == nullptr || (!reward->is_number() && !reward->is_null()))
      return Error{ErrorKind::kData, "'reward' must be a number or null",
                   fmt::format("{}:{}", path.string(), row->line), "correct the file"};
    out.push_back(reward->is_null() ? std::nan("") : reward->get<double>());
  }
}

}  // namespace

Result<std::string> compare_tensors(Env& env, const Path& inputs, const Path& outputs, double tolerance) {
  constexpr std::string_view kExpected = "expected.";
  const SafetensorsFile before = TRY(SafetensorsFile::open(env, inputs));
  const SafetensorsFile after = TRY(SafetensorsFile::open(env, outputs));
  size_t num_compared = 0;
  for (const TensorView& expected : before.tensors()) {
    if (!expected.name.starts_with(kExpected)) continue;
    const std::string name = expected.name.substr(kExpected.size());
    const TensorView* got = after.find(name);
    if (got == nullptr) return "the plugin gives no " + name;
    const auto want = numbers_of(expected), have = numbers_of(*got);
    if (want.size() != have.size() || (want.empty() && !expected.bytes.empty()))
      return fmt::format("{} has {} elements, expected {}", name, have.size(), want.size());
    double largest = 0.0;
    for (const double value : want)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < want.size(); ++i) {
      if (!is_close(want[i], have[i], tolerance, largest))
        return difference(fmt::format("{}[{}]", name, i), want[i], have[i]);
    }
    ++num_compared;
  }
  return std::string(num_compared == 0 ? "the inputs have no expected.X to compare with" : "");
}

Result<std::string> compare_rewards(Env& env, const Path& expected, const Path& outputs, double tolerance) {
  const auto want = TRY(read_rewards(env, expected));
  const auto have = TRY(read_rewards(env, outputs));
  if (want.empty()) return "there are no expected rewards";
  if (want.size() != have.size()) return fmt::format("there are {} rewards, expected {}", have.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (!is_close(want[i], have[i], tolerance, 0.0))
      return difference("the reward of row " + std::to_string(i + 1), want[i], have[i]);
  }
  return std::string();
}

Result<std::vector<GoldenOutcome>> run_golden_tests(Env& env, const PackArchive& archive, const PackBuild& build,
                                                    const GoldenOptions& options) {
  std::vector<GoldenOutcome> outcomes;
  if (archive.description.tests.empty()) return outcomes;
  const Path folder = TRY(make_private_folder("mortise_golden_"));
  const Path library = folder / build.file;
  const auto wanted = [&](std::string_view path) { return path.starts_with("tests/") || path == build.file; };
  const auto all = [&]() -> Result<> {
    for (const ArchiveFile& file : TRY(archive.extract(wanted))) {
      const Path path = folder / file.path;
      TRY(env.create_dirs(path.parent_path()));
      TRY(write_file(env, path, file.bytes));
    }
    for (const std::string& test : archive.description.tests) {
      std::string fault = TRY(run_one(env, folder, test, library, archive.description.id, options));
      outcomes.push_back({test, std::move(fault)});
    }
    return {};
  };
  const Result<> done = all();
  (void)remove_tree(env, folder);
  if (!done.ok()) return done.error();
  return outcomes;
}

}  // namespace mortise
