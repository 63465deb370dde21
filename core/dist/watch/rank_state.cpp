// Writes states as lines of text, and reads processes from /proc.
#include "dist/watch/rank_state.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <vector>

#include "foundation/base/text.h"

namespace mortise {

namespace {

// What can be read: a process may end after its file was opened, and read() then stops without an exception.
std::string read_small_file(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::array<char, 4096> part{};
  do {
    file.read(part.data(), part.size());
    text.append(part.data(), static_cast<size_t>(file.gcount()));
  } while (file.good());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string link_of(const char* path) {
  char target[256];
  const ssize_t size = readlink(path, target, sizeof target);
  return size > 0 ? std::string(target, static_cast<size_t>(size)) : std::string();
}

struct ProcessStat {
  char state = 0;
  int64_t start_ticks = 0;
};

// proc(5): the name in parentheses may hold anything, so fields are counted from the last parenthesis.
std::optional<ProcessStat> stat_of(int64_t pid) {
  const std::string text = read_small_file(fmt::format("/proc/{}/stat", pid));
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return std::nullopt;
  const auto fields = split(std::string_view(text).substr(name_end + 2), ' ');
  constexpr size_t kStartTime = 19;  // field 22 of the line
  if (fields.size() <= kStartTime || fields[0].empty()) return std::nullopt;
  const auto start = parse_i64(fields[kStartTime]);
  if (!start) return std::nullopt;
  return ProcessStat{fields[0][0], *start};
}

// proc(5): the launcher may have given each rank processors of its own.
std::string allowed_cpus(int64_t pid) {
  constexpr std::string_view kName = "Cpus_allowed_list:";
  const std::string text = read_small_file(fmt::format("/proc/{}/status", pid));
  for (const std::string_view line : split(text, '\n')) {
    if (line.starts_with(kName)) return std::string(trim(line.substr(kName.size())));
  }
  return {};
}

// The first `count` lines and the rest.
std::optional<std::vector<std::string_view>> lines_of(std::string_view text, size_t count) {
  std::vector<std::string_view> lines;
  while (lines.size() < count) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  lines.push_back(text);
  return lines;
}

}  // namespace

std::string encode(const RankState& state) {
  const RankSet& awaits = state.awaits;
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", state.beats, state.calls, state.step,
                     state.waits ? 1 : 0, awaits.first, awaits.step, awaits.count, static_cast<int>(state.status),
                     awaits.is_aside ? 1 : 0, state.stop_signal, state.progress, state.stage, state.error);
}

std::optional<RankState> decode_rank_state(std::string_view text) {
  constexpr size_t kNumbers = 10;
  const auto lines = lines_of(text, kNumbers + 2);
  if (!lines) return std::nullopt;
  std::array<int64_t, kNumbers> n{};
  for (size_t i = 0; i < kNumbers; ++i) {
    const auto number = parse_i64((*lines)[i]);
    if (!number) return std::nullopt;
    n[i] = *number;
  }
  const int64_t status = n[7];
  const bool is_stop_signal = n[9] == 0 || n[9] == SIGINT || n[9] == SIGTERM;
  if (status < 0 || status > 4 || n[5] < 1 || !is_stop_signal) return std::nullopt;
  const RankSet awaits{static_cast<int>(n[4]), static_cast<int>(n[5]), static_cast<int>(n[6]), n[8] != 0};
  return RankState{n[0],
                   n[1],
                   n[2],
                   n[3] != 0,
                   static_cast<RankStatus>(status),
                   std::string((*lines)[kNumbers + 1]),
                   std::string((*lines)[kNumbers + 2]),
                   awaits,
                   std::string((*lines)[kNumbers]),
                   static_cast<int>(n[9])};
}

std::string place_text(const RankState& state) {
  if (state.step <= 0) return fmt::format("in '{}'", state.stage);
  return fmt::format("in '{}' of step {}", state.stage, state.step);
}

RankProcess this_process(int size) {
  RankProcess process = describe_process(getpid(), size);
  // Containers may each have a group of the same name, in a namespace of their own.
  if (const auto& quota = own_cpu_quota())
    process.cpu_group = fmt::format("{} {}", link_of("/proc/self/ns/cgroup"), quota->group);
  return process;
}

RankProcess describe_process(int64_t pid, int size) {
  RankProcess process;
  const std::string boot = read_small_file("/proc/sys/kernel/random/boot_id");
  const std::string space = link_of("/proc/self/ns/pid");
  if (!boot.empty() && !space.empty()) process.machine = fmt::format("{} {}", boot, space);
  const std::string network = link_of("/proc/self/ns/net");
  if (!boot.empty() && !network.empty()) process.network = fmt::format("{} {}", boot, network);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  process.host = host;
  process.size = size;
  if (const auto stat = stat_of(pid)) {
    process.pid = pid;
    process.start_ticks = stat->start_ticks;
    process.cpus = allowed_cpus(pid);
  }
  return process;
}

std::string encode(const RankProcess& process) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", process.machine, process.network, process.pid,
                     process.start_ticks, process.size, process.cpus, process.cpu_group, process.host);
}

std::optional<RankProcess> decode_rank_process(std::string_view text) {
  const auto lines = lines_of(text, 7);
  if (!lines) return std::nullopt;
  const auto pid = parse_i64((*lines)[2]);
  const auto start = parse_i64((*lines)[3]);
  const auto size = parse_i64((*lines)[4]);
  if (!pid || !start || !size) return std::nullopt;
  return RankProcess{std::string((*lines)[0]), std::string((*lines)[1]), std::string((*lines)[7]), *pid, *start,
                     static_cast<int>(*size),  std::string((*lines)[5]), std::string((*lines)[6])};
}

ProcessesHere processes_here(std::span<const RankProcess> processes, const RankProcess& self) {
  if (self.machine.empty()) return {};
  const auto count = [&](std::string RankProcess::*shared) {
    const auto shares = [&](const RankProcess& one) {
      return one.machine == self.machine && one.*shared == self.*shared;
    };
    return std::max(1, static_cast<int>(std::ranges::count_if(processes, shares)));
  };
  return {.on_cpus = count(&RankProcess::cpus), .in_quota = count(&RankProcess::cpu_group)};
}

bool has_ended(const RankProcess& process, const RankProcess& self) {
  if (process.pid == 0 || process.machine.empty() || process.machine != self.machine) return false;
  const auto stat = stat_of(process.pid);
  return !stat || stat->start_ticks != process.start_ticks || stat->state == 'Z' || stat->state == 'X';
}

}  // namespace mortise
