// Text forms of durations and times. See clock.h.
#include "foundation/base/clock.h"

#include <fmt/core.h>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>

#include "foundation/base/text.h"

namespace mortise {
namespace {

struct Unit {
  std::string_view name;
  double nanoseconds;
};
constexpr std::array<Unit, 7> kUnits{
    {{"d", 86400e9}, {"h", 3600e9}, {"m", 60e9}, {"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}}};

Error bad_duration(std::string_view text, std::string_view reason) {
  return {ErrorKind::kConfig, fmt::format("{} is not a duration: {}", quote(text), reason), "",
          "write a number and a unit (ns, us, ms, s, m, h, d), such as \"10s\" or \"1h30m\""};
}

}  // namespace

Result<int64_t> parse_duration_ns(std::string_view text) {
  if (text == "0") return int64_t{0};
  if (text.empty()) return bad_duration(text, "it is empty");
  double total = 0;
  size_t last_unit = 0;
  bool first = true;
  for (std::string_view rest = text; !rest.empty(); first = false) {
    size_t number_end = 0;
    while (number_end < rest.size() &&
           (std::isdigit(static_cast<unsigned char>(rest[number_end])) != 0 || rest[number_end] == '.'))
      ++number_end;
    size_t unit_end = number_end;
    while (unit_end < rest.size() && std::isalpha(static_cast<unsigned char>(rest[unit_end])) != 0) ++unit_end;
    const auto number = parse_f64(rest.substr(0, number_end));
    if (!number) return bad_duration(text, "a number is missing or wrong");
    const std::string_view name = rest.substr(number_end, unit_end - number_end);
    if (name.empty()) return bad_duration(text, "the unit is missing");
    size_t unit = 0;
    while (unit < kUnits.size() && kUnits[unit].name != name) ++unit;
    if (unit == kUnits.size()) return bad_duration(text, "unknown unit " + quote(name));
    if (!first && unit <= last_unit) return bad_duration(text, "units must fall from left to right");
    last_unit = unit;
    total += *number * kUnits[unit].nanoseconds;
    rest.remove_prefix(unit_end);
  }
  if (!(total < 9.2e18)) return bad_duration(text, "it is longer than 292 years");
  return static_cast<int64_t>(std::llround(total));
}

std::string format_duration(double seconds) {
  std::array<char, 64> out{};
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e12) return "?";
  if (seconds < 10) {
    std::snprintf(out.data(), out.size(), "%.2f s", seconds);
  } else if (seconds < 99.95) {
    std::snprintf(out.data(), out.size(), "%.1f s", seconds);
  } else {
    const auto whole = static_cast<long long>(std::llround(seconds));
    if (whole < 3600)
      std::snprintf(out.data(), out.size(), "%lldm%02llds", whole / 60, whole % 60);
    else if (whole < 86400)
      std::snprintf(out.data(), out.size(), "%lldh%02lldm", whole / 3600, whole / 60 % 60);
    else
      std::snprintf(out.data(), out.size(), "%lldd%02lldh", whole / 86400, whole / 3600 % 24);
  }
  return out.data();
}

std::string format_time_utc(int64_t wall_time_ns) {
  const auto seconds = static_cast<std::time_t>(wall_time_ns / 1'000'000'000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> out{};
  std::strftime(out.data(), out.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return out.data();
}

}  // namespace mortise
