// bench_step RUN.toml OUT.json [key=value ...]: trains as `mortise train` does, and says where the time of a step goes: by
// stage, and in it by kind of operation. With one thread it is processor time. With more it is the time of the clock,
// because the first thread may wait for the others: an operation that two threads do not make shorter runs on one.
//
// A row's floor is the time that its arithmetic or its bytes need at the limits of this machine, which the program
// measures first; the larger of the two counts. The limit of the arithmetic is that of float32. Where the CPU multiplies
// bfloat16 numbers itself, a matrix product of bfloat16 may be faster than its floor. Products in the tasks of other
// threads are not counted. The table goes to standard output, the same numbers as JSON to OUT.json.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "config/check.h"
#include "foundation/base/freed_memory.h"
#include "foundation/base/log.h"
#include "foundation/formats/json.h"
#include "model/tensor/torch_guard.h"
#include "op_table.h"
#include "roofline.h"
#include "train/loop/trainer.h"

namespace {

using namespace mortise;  // NOLINT: a program of one file

constexpr int kWarmUp = 2;

struct Machine {
  int threads = 1;  // that the run may use
  Roofline limits;
};

struct Row {
  std::string stage, operation;
  OpUse use;
  double floor_s = 0;
};

std::vector<Row> rows_of(const OpTable& table, const Roofline& limits) {
  std::vector<Row> rows;
  for (const auto& [key, use] : table.rows()) {
    Row row{key.first, key.second, use};
    constexpr std::string_view kTiming = "timing_s/";
    if (row.stage.starts_with(kTiming)) row.stage.erase(0, kTiming.size());
    if (row.stage.empty()) row.stage = "metrics and the rest";
    if (row.operation.empty()) row.operation = "the rest";
    row.floor_s = std::max(use.flops / limits.flops_per_s, use.bytes / limits.read_bytes_per_s);
    rows.push_back(std::move(row));
  }
  std::ranges::sort(rows, [](const Row& a, const Row& b) { return a.use.seconds > b.use.seconds; });
  return rows;
}

Json json_of(const OpTable& table, const std::vector<Row>& rows, const Machine& machine) {
  const Roofline& limits = machine.limits;
  Json out = Json::object();
  out["threads"] = machine.threads;
  out["steps"] = table.num_steps() - kWarmUp;
  out["step_s"] = table.step_seconds();
  out["limits"] = {{"flops_per_s", limits.flops_per_s}, {"read_bytes_per_s", limits.read_bytes_per_s}};
  out["rows"] = Json::array();
  for (const Row& row : rows) {
    out["rows"].push_back({{"stage", row.stage},
                           {"operation", row.operation},
                           {"seconds", row.use.seconds},
                           {"calls", row.use.calls},
                           {"flops", row.use.flops},
                           {"bytes", row.use.bytes},
                           {"floor_s", row.floor_s}});
  }
  return out;
}

void print(const OpTable& table, const std::vector<Row>& rows, const Machine& machine) {
  const Roofline& limits = machine.limits;
  double sum = 0, floor = 0;
  for (const Row& row : rows) {
    sum += row.use.seconds;
    floor += row.floor_s;
  }
  std::printf("%d thread%s; %.0f GFLOP/s in float32 and %.1f GB/s read from memory are the machine's limits for them\n",
              machine.threads, machine.threads == 1 ? "" : "s", limits.flops_per_s / 1e9,
              limits.read_bytes_per_s / 1e9);
  std::printf("%s: %.2f ms for the least of %d steps; %.2f ms for the sum of the least times below\n\n",
              machine.threads == 1 ? "processor time" : "time", 1e3 * table.step_seconds(), table.num_steps() - kWarmUp,
              1e3 * sum);
  std::printf("%-22s%-34s%10s%8s%10s%10s%10s%8s\n", "stage", "operation", "ms", "share", "calls", "GFLOP/s", "GB/s",
              "floor");
  for (const Row& row : rows) {
    const double s = row.use.seconds;
    std::printf("%-22s%-34s%10.3f%7.1f%%%10ld%10.1f%10.1f%7.0f%%\n", row.stage.c_str(), row.operation.c_str(), 1e3 * s,
                100 * s / sum, static_cast<long>(row.use.calls), row.use.flops / s / 1e9, row.use.bytes / s / 1e9,
                100 * row.floor_s / s);
  }
  std::printf("%-56s%10.3f%46s%7.0f%%\n", "sum", 1e3 * sum, "", 100 * floor / sum);
}

Result<> run(const std::vector<std::string>& words, Machine& machine, OpTable& table) {
  const LoadedConfig loaded = TRY(load_config(default_env(), words[0], std::span(words).subspan(2)));
  for (const Error& warning : TRY(check_config(loaded, ConfigUse::kTrain))) log_warn(warning.to_string());
  if (!loaded.config.trainer.num_threads)
    return Error{ErrorKind::kConfig, "the limits are those of a number of threads", "bench_step",
                 "set trainer.num_threads"};
  machine.threads = static_cast<int>(*loaded.config.trainer.num_threads);
  machine.limits = measure_roofline(machine.threads);
  table.measure(machine.threads == 1 ? OpTable::Time::kProcessor : OpTable::Time::kClock);
  op_listener = &table;
  Result<> done = guard_torch("train", [&]() -> Result<> {
    TRY(train(default_env(), loaded, {}));
    return {};
  });
  op_listener = nullptr;
  TRY(std::move(done));
  if (table.num_steps() > kWarmUp) return {};
  return Error{ErrorKind::kConfig, fmt::format("a measurement needs more than {} steps", kWarmUp), "bench_step",
               "raise trainer.total_training_steps"};
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 2) {
    std::fprintf(stderr, "usage: bench_step RUN.toml OUT.json [key=value ...]\n");
    return 2;
  }
  Machine machine;
  OpTable table("step", kWarmUp);
  const Result<> done = run(words, machine, table);
  if (!done.ok()) {
    log_error(done.error());
    return static_cast<int>(done.error().kind);
  }
  const std::vector<Row> rows = rows_of(table, machine.limits);
  print(table, rows, machine);
  std::ofstream out(words[1]);
  out << dump_json(json_of(table, rows, machine)) << "\n" << std::flush;
  if (out) return 0;
  log_error(Error{ErrorKind::kDisk, "the numbers cannot be written", words[1], "name a file in a folder that exists"});
  return static_cast<int>(ErrorKind::kDisk);
}
