// See run_device.h.
#include "train/run/run_device.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "config/device_rules.h"
#include "dist/nccl/carry_device.h"
#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "model/device/kernel_table.h"
#include "train/loop/score_extension.h"
#include "train/run/run_parts.h"

namespace mortise {
namespace {

ConfigUse use_of(RunKind kind) {
  return kind == RunKind::kTrain ? ConfigUse::kTrain : kind == RunKind::kSft ? ConfigUse::kSft : ConfigUse::kEval;
}

bool needs_bfloat16(const LoadedConfig& loaded) { return loaded.config.model.dtype == ModelDtype::kBfloat16; }

Result<> check_machine(int index, bool needs_bfloat16, std::optional<GpuFacts>& gpu) {
  gpu = TRY(ask_driver({}, index, needs_bfloat16));
  return find_cuda_library();
}

// Rank K of a machine takes GPU K. A launcher may show each rank one GPU only, which is number 0 there.
Result<> check_gpu_of_rank(int local_rank, bool needs_bfloat16, DeviceChoice& choice) {
  const int num_visible = choice.gpu->num_visible;
  if (num_visible == 1) return {};
  choice.name.index = local_rank;
  if (local_rank < num_visible) return check_machine(local_rank, needs_bfloat16, choice.gpu);
  return Error{
      ErrorKind::kConfig,
      fmt::format("rank {} of this machine needs a GPU of its own, and it sees {} GPUs", local_rank, num_visible), "",
      fmt::format("start at most {} ranks on a machine, or show each rank its own GPU", num_visible)};
}

ComputeDevice cpu_because(const std::string& reason) {
  ComputeDevice out;
  if (!reason.empty()) out.text = "the CPU, because " + reason;
  return out;
}

// Why a run with "auto" does not take the GPU; empty if it does.
std::string why_no_gpu(const LoadedConfig& loaded, int num_ranks, ConfigUse use, const PluginRegistry* registry,
                       std::optional<GpuFacts>& gpu) {
  if (num_ranks > 1) return "several ranks take GPUs only with model.device = \"cuda\"";
  std::vector<Error> problems = check_device_rules(loaded, use);
  if (problems.empty() && use == ConfigUse::kTrain && registry != nullptr)
    problems = device_plugin_problems(*registry, loaded);
  if (!problems.empty()) return problems.front().what;
  const Result<> machine = check_machine(0, needs_bfloat16(loaded), gpu);
  return machine.ok() ? "" : machine.error().what;
}

std::string name_of(const DeviceName& name) {
  if (name.kind == DeviceKind::kCuda) return fmt::format("cuda:{}", name.index);
  return name.kind == DeviceKind::kCpuAsDevice ? "cpu-as-device" : "cpu";
}

DeviceChoice choose(const LoadedConfig& loaded, const RankCount& ranks, ConfigUse use, const PluginRegistry* registry) {
  const std::string& text = loaded.config.model.device;
  DeviceChoice out;
  out.name = parse_device_name(text).value_or(DeviceName());  // check_config has refused others
  if (out.name.kind == DeviceKind::kCpu) return out;
  if (out.name.kind == DeviceKind::kAuto) {
    out.why_cpu = why_no_gpu(loaded, ranks.size, use, registry, out.gpu);
    out.name = {out.why_cpu.empty() ? DeviceKind::kCuda : DeviceKind::kCpu};
    return out;
  }
  if (out.name.kind != DeviceKind::kCuda) return out;
  if (ranks.size > 1 && text != "cuda") {
    out.problem =
        Error{ErrorKind::kConfig,
              fmt::format("'model.device' is {}, which is one GPU, and there are {} ranks", quote(text), ranks.size),
              loaded.where("model.device"), "set model.device = \"cuda\": each rank then takes its own GPU"};
    return out;
  }
  const bool is_bfloat16 = needs_bfloat16(loaded);
  Result<> machine = check_machine(out.name.index, is_bfloat16, out.gpu);  // 0 with several ranks
  if (machine.ok() && ranks.size > 1 && ranks.local_rank > 0)
    machine = check_gpu_of_rank(ranks.local_rank, is_bfloat16, out);
  if (!machine.ok()) out.problem = at_place(loaded.where("model.device"), machine).error();
  return out;
}

Result<ComputeDevice> open_choice(const LoadedConfig& loaded, const DeviceChoice& choice) {
  if (choice.problem) return *choice.problem;
  if (choice.name.kind == DeviceKind::kCpu) return cpu_because(choice.why_cpu);
  auto opened = open_device(choice.name, needs_bfloat16(loaded));
  if (!opened.ok() && !names_device(loaded)) return cpu_because(opened.error().what);
  return at_place(loaded.where("model.device"), std::move(opened));
}

}  // namespace

DeviceChoice choose_device(const LoadedConfig& loaded, const RankCount& ranks, RunKind kind,
                           const PluginRegistry* registry) {
  return choose(loaded, ranks, use_of(kind), registry);
}

Result<ComputeDevice> open_run_device(const LoadedConfig& loaded, Communicator& ranks, RunKind kind,
                                      const PluginRegistry* registry) {
  const DeviceChoice choice = choose_device(loaded, {ranks.size(), ranks.local_rank()}, kind, registry);
  ComputeDevice opened = TRY(open_choice(loaded, choice));
  if (opened.by_operators) TRY(at_place(loaded.where("model.device"), carry_device(ranks, opened.device)));
  offer_score_models(opened);
  return opened;
}

void log_device(const RunConfig& config, const ComputeDevice& device) {
  if (config.model.device != ModelSection().device) log_info("device: " + device.text);
}

Result<ComputeDevice> open_sampling_device(const LoadedConfig& loaded, ConfigUse use) {
  ComputeDevice opened = TRY(open_choice(loaded, choose(loaded, {}, use, nullptr)));
  log_device(loaded.config, opened);
  return opened;
}

std::string why_operators(const RunConfig& config) {
  if (config.model.dtype == ModelDtype::kFloat64) return "model.dtype is \"float64\"";
  return why_no_gpu_kernels();
}

std::string device_line(const LoadedConfig& loaded, const DeviceChoice& choice, double bytes) {
  const std::string& text = loaded.config.model.device;
  if (choice.problem) return fmt::format("# device: {} cannot be used: {}\n", text, one_line(choice.problem->what));
  if (choice.name.kind == DeviceKind::kCpuAsDevice) return "# device: the CPU, with the code of a device\n";
  if (choice.name.kind == DeviceKind::kCpu)
    return choice.why_cpu.empty() ? "" : fmt::format("# device: the CPU, because {}\n", one_line(choice.why_cpu));
  const GpuFacts& gpu = *choice.gpu;
  const bool fits = bytes <= static_cast<double>(gpu.memory_bytes);
  const std::string why = why_operators(loaded.config);
  return fmt::format(
      "# device: {}, {} with {}; about {} of the memory above are on it{}\n# kernels: {}\n", name_of(choice.name),
      one_line(gpu.name), format_bytes(gpu.memory_bytes), format_bytes(static_cast<uint64_t>(bytes)),
      fits ? "" : "; that does not fit",
      why.empty() ? "those of core/cuda, where they can compute" : "none of core/cuda, because " + one_line(why));
}

Json device_json(const RunConfig& config, const DeviceChoice& choice, double bytes) {
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  Json out = {{"name", name_of(choice.name)},
              {"why_cpu", text(choice.why_cpu)},
              {"problem", text(choice.problem ? choice.problem->what : "")},
              {"gpu", Json()},
              {"gpu_memory_bytes", Json()},
              {"memory_bytes", Json()},
              {"kernels", Json()}};
  if (choice.is_by_operators()) out["memory_bytes"] = static_cast<uint64_t>(bytes);
  if (!choice.gpu) return out;
  out["gpu"] = choice.gpu->name;
  out["gpu_memory_bytes"] = choice.gpu->memory_bytes;
  out["kernels"] = why_operators(config).empty();
  return out;
}

}  // namespace mortise
