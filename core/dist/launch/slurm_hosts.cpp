// Takes the first host, and the first number within its brackets.
#include "dist/launch/slurm_hosts.h"

#include <algorithm>
#include <cctype>

namespace mortise {

namespace {

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_host_part(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_'; });
}

}  // namespace

std::optional<std::string> first_slurm_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    const size_t open = list.find_first_of("[,");
    if (open == std::string_view::npos || list[open] == ',') {  // no range left in the first host
      host += list.substr(0, open);
      list.remove_prefix(std::min(open, list.size()));
      break;
    }
    const size_t close = list.find(']', open);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view ranges = list.substr(open + 1, close - open - 1);
    const std::string_view number = ranges.substr(0, ranges.find_first_of(",-"));
    if (!is_number(number)) return std::nullopt;
    host += list.substr(0, open);
    host += number;
    list.remove_prefix(close + 1);
  }
  if (host.empty() || !is_host_part(host)) return std::nullopt;
  return host;
}

}  // namespace mortise
