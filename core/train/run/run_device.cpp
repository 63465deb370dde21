// See run_device.h.
#include "train/run/run_device.h"

#include <fmt/core.h>

#include "config/device_rules.h"
#include "foundation/base/at_place.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

ConfigUse use_of(RunKind kind) {
  return kind == RunKind::kTrain ? ConfigUse::kTrain : kind == RunKind::kSft ? ConfigUse::kSft : ConfigUse::kEval;
}

bool needs_bfloat16(const LoadedConfig& loaded) { return loaded.config.model.dtype == ModelDtype::kBfloat16; }

ComputeDevice cpu_because(const Error& reason) {
  ComputeDevice out;
  out.text = "the CPU, because " + reason.what;
  return out;
}

}  // namespace

Result<ComputeDevice> open_run_device(const LoadedConfig& loaded, const Communicator& ranks, RunKind kind) {
  const std::string& text = loaded.config.model.device;
  const DeviceName name = parse_device_name(text).value_or(DeviceName());  // check_config has refused others
  if (name.kind == DeviceKind::kCpu) return ComputeDevice();
  if (name.kind == DeviceKind::kAuto) {
    if (ranks.size() > 1) return cpu_because({ErrorKind::kConfig, "several ranks have no device yet", "", ""});
    if (const std::vector<Error> problems = check_device_rules(loaded, use_of(kind)); !problems.empty())
      return cpu_because(problems.front());
    auto opened = open_device({DeviceKind::kCuda}, needs_bfloat16(loaded));
    return opened.ok() ? *std::move(opened) : cpu_because(opened.error());
  }
  if (ranks.size() > 1) {
    return Error{ErrorKind::kConfig,
                 fmt::format("'model.device' is {}, and several ranks cannot use a device yet", quote(text)),
                 loaded.where("model.device"), "start one process, or set model.device = \"cpu\""};
  }
  return at_place(loaded.where("model.device"), open_device(name, needs_bfloat16(loaded)));
}

std::string device_line(const LoadedConfig& loaded, double bytes) {
  const std::string& text = loaded.config.model.device;
  const DeviceName name = parse_device_name(text).value_or(DeviceName());
  if (name.kind == DeviceKind::kCpu) return "";
  if (name.kind == DeviceKind::kCpuAsDevice) return "# device: the CPU, with the code of a device\n";
  const auto gpu = ask_driver({}, name.index, needs_bfloat16(loaded));
  if (!gpu.ok()) return fmt::format("# device: {}, but this machine has none: {}\n", text, one_line(gpu.error().what));
  const bool fits = bytes <= static_cast<double>(gpu->memory_bytes);
  return fmt::format("# device: {}, {} with {}; about {} of the memory above lie there{}\n", text, one_line(gpu->name),
                     format_bytes(gpu->memory_bytes), format_bytes(static_cast<uint64_t>(bytes)),
                     fits ? "" : ", which do not fit");
}

}  // namespace mortise
