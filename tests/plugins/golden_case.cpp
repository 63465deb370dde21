// Reading of the golden tensors: safetensors with parameters and metrics as JSON in the metadata.
#include "golden_case.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "foundation/formats/safetensors.h"

namespace mortise::test {
namespace {

std::vector<double> widened(const TensorView& t) {
  const auto convert = [&]<class T>(T) {
    const auto values = t.as<T>();
    return std::vector<double>(values.begin(), values.end());
  };
  switch (t.dtype) {
    case DType::kF32:
      return convert(float{});
    case DType::kF64:
      return convert(double{});
    case DType::kI64:
      return convert(int64_t{});
    default:
      throw std::runtime_error("a golden tensor has an unexpected dtype");
  }
}

GoldenCase read_golden(const std::filesystem::path& path) {
  auto opened = SafetensorsFile::open(default_env(), path.string());
  if (!opened.ok()) throw std::runtime_error(opened.error().to_string());
  const SafetensorsFile& file = opened.value();
  GoldenCase out;
  out.file = path.filename().string();
  out.plugin = file.metadata().at("plugin");
  for (const TensorView& t : file.tensors()) {
    out.tensors[t.name] = widened(t);
    if (t.shape.size() == 2) out.num_rows = t.shape[0], out.width = t.shape[1];
  }
  const auto params = nlohmann::json::parse(file.metadata().at("params"));
  for (const auto& [key, value] : params.items()) {
    out.params[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  const auto metrics = nlohmann::json::parse(file.metadata().at("metrics"));
  for (const auto& [key, value] : metrics.items()) {
    out.metrics[key] = value.get<double>();
  }
  return out;
}

}  // namespace

std::vector<GoldenCase> golden_cases(const std::string& kind, const std::string& plugin, const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(MORTISE_SOURCE_DIR) + "/tests/golden/" + folder)) {
    if (entry.path().filename().string().rfind(kind + "." + plugin + ".", 0) == 0) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<GoldenCase> cases;
  for (const auto& path : paths) cases.push_back(read_golden(path));
  return cases;
}

}  // namespace mortise::test
