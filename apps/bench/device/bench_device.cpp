// See parts.h. bench_device --device NAME: as model.device, without "auto". It ends with code 13 if the machine lacks it.
#include "device/parts.h"

#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>
#include <iostream>
#include <string>
#include <utility>

#include "bench_device.h"
#include "foundation/base/memory.h"
#include "measure.h"
#include "model/tensor/torch_guard.h"

namespace mortise {
namespace {

struct NamedPart {
  const char* name;
  BenchPart run;
};
constexpr NamedPart kParts[] = {
    {"limits", bench_limits}, {"head", bench_head},           {"head_check", bench_head_check},
    {"losses", bench_losses}, {"optimizer", bench_optimizer}, {"sample", bench_sample},
    {"train", bench_train}};

Result<Json> answer(const BenchDevice& bench, const std::string& line) {
  const Json request = TRY(parse_json(line, "request"));
  const auto what = request.at("do").get<std::string>();
  for (const NamedPart& part : kParts) {
    if (what == part.name) return guard_torch(what, [&] { return part.run(bench, request); });
  }
  return Error{ErrorKind::kConfig, "bench_device has no part '" + what + "'", "request", "parts.h lists them"};
}

int serve(const BenchDevice& bench) {
  std::cout << dump_json(Json{{"device", bench.device().text}}) << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const Result<Json> out = answer(bench, line);
    bench.free_memory();
    std::cout << dump_json(out.ok() ? *out : Json{{"error", out.error().to_string()}}) << std::endl;
  }
  return 0;
}

}  // namespace

BenchDevice::BenchDevice(ComputeDevice device) : device_(std::move(device)), flag_(at::zeros({1}, floats())) {}

// The copy comes after all that was started before it.
void BenchDevice::wait() const {
  if (!flag_.is_cpu()) on_host(flag_);
}

std::vector<double> BenchDevice::times(int64_t repeats, const std::function<void()>& work) const {
  std::vector<double> out;
  for (int64_t i = 0; i <= repeats; ++i) {
    wait();
    const double start = clock_seconds();
    work();
    wait();
    if (i > 0) out.push_back(clock_seconds() - start);
  }
  return out;
}

double BenchDevice::extra_bytes(const std::function<void()>& work) const {
  constexpr double kGib = 1 << 30;
  wait();
  if (device_.device.is_cpu()) {
    const double before = resident_memory_gib();
    if (!reset_peak_memory()) return 0;
    work();
    return (peak_memory_gib() - before) * kGib;
  }
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device_.device.type());
  const auto held = [&] { return allocator->getDeviceStats(device_.device.index()).allocated_bytes[0]; };
  allocator->resetPeakStats(device_.device.index());
  const int64_t before = held().current;
  work();
  wait();
  return static_cast<double>(held().peak - before);
}

void BenchDevice::free_memory() const {
  if (!device_.device.is_cpu()) c10::getDeviceAllocator(device_.device.type())->emptyCache();
}

Result<Model> load_model(const BenchDevice& bench, const Json& request) {
  Model model =
      TRY(Model::load(default_env(), request.at("folder").get<std::string>(), request.at("dtype").get<std::string>()));
  TRY(model.move_to(bench.device()));
  return model;
}

}  // namespace mortise

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--device") != 0) {
    std::cerr << "usage: bench_device --device cuda|cuda:N|cpu-as-device|cpu\n";
    return 2;
  }
  return mortise::serve(mortise::BenchDevice(mortise::open_bench_device(argv[2])));
}
