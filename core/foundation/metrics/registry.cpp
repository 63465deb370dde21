// See registry.h.
#include "foundation/metrics/registry.h"

#include <fmt/core.h>
#include <algorithm>
#include <cassert>
#include <cmath>

#include "foundation/base/limits.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

bool is_printable(std::string_view name) {
  return !name.empty() && name.size() <= limits::kMaxMetricNameBytes && !find_invalid_utf8(name) &&
         std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
}

Error two_reductions(std::string_view name, Reduction first, Reduction second) {
  return {ErrorKind::kPlugin,
          fmt::format("metric {} is reduced by {} here and by {} elsewhere", quote(name), reduction_name(second),
                      reduction_name(first)),
          "", "give it one reduction, or another name"};
}

}  // namespace

void MetricSet::Sum::add(double value) {
  const double total = high + value;
  if (!std::isfinite(total)) {  // keeps an infinity or NaN, which the correction would turn into NaN
    high = total;
    low = 0;
    return;
  }
  const double part = total - high;
  low += (high - (total - part)) + (value - part);
  high = total;
}

void MetricSet::Sum::add(const Sum& other) {
  add(other.high);
  if (std::isfinite(high)) low += other.low;
}

void MetricSet::accumulate(Entry& entry, double sum, double weight) {
  switch (entry.reduction) {
    case Reduction::kMean:
      entry.sum.add(sum);
      entry.weight.add(weight);
      break;
    case Reduction::kSum:
      entry.sum.add(sum);
      break;
    // NaN wins, because a broken number must show.
    case Reduction::kMax:
      entry.extreme = !entry.any || sum > entry.extreme || std::isnan(sum) ? sum : entry.extreme;
      break;
    case Reduction::kMin:
      entry.extreme = !entry.any || sum < entry.extreme || std::isnan(sum) ? sum : entry.extreme;
      break;
    case Reduction::kLast:
      entry.extreme = sum;
      break;
  }
  entry.any = true;
}

void MetricSet::add(std::string_view name, double sum, double weight) {
  const MetricInfo* info = find_metric(name);
  assert(info != nullptr && "add the metric to metrics/names.cpp");
  if (info == nullptr)
    log_warn_once(fmt::format("metric {} is not in the table of metrics (a bug; it is kept as a mean)", quote(name)));
  const Reduction reduction = info != nullptr ? info->reduction : Reduction::kMean;
  const auto [at, added] = entries_.try_emplace(std::string(name), Entry{reduction, {}, {}, 0, false});
  accumulate(at->second, sum, weight);
}

void MetricSet::add_summary(std::string_view prefix, const std::vector<double>& values) {
  if (values.empty()) return;
  const std::string name(prefix);
  for (const char* const kind : {"/mean", "/max", "/min"}) {
    const std::string key = name + kind;
    add(key, values.front(), 1);
    Entry& entry = entries_.find(key)->second;  // looked up once: there is a value for each row
    for (size_t i = 1; i < values.size(); ++i) accumulate(entry, values[i], 1);
  }
}

Result<> MetricSet::add_user(std::string_view name, double sum, double weight, Reduction reduction) {
  if (!is_printable(name))
    return Error{ErrorKind::kPlugin,
                 fmt::format("metric name {} is empty, too long or not printable UTF-8", quote(name)), "",
                 fmt::format("use at most {} printable bytes", limits::kMaxMetricNameBytes)};
  if (const MetricInfo* info = find_metric(name); info != nullptr && info->reduction != reduction)
    return two_reductions(name, info->reduction, reduction);
  auto at = entries_.find(name);
  if (at == entries_.end()) {
    if (entries_.size() >= limits::kMaxMetricNames)
      return Error{ErrorKind::kPlugin, fmt::format("more than {} metric names", limits::kMaxMetricNames), "",
                   "do not put changing numbers into metric names"};
    at = entries_.emplace(std::string(name), Entry{reduction, {}, {}, 0, false}).first;
  }
  if (at->second.reduction != reduction) return two_reductions(name, at->second.reduction, reduction);
  accumulate(at->second, sum, weight);
  return {};
}

Result<> MetricSet::merge(const MetricSet& other) {
  for (const auto& [name, theirs] : other.entries_) {
    const auto [at, added] = entries_.try_emplace(name, theirs);
    if (added) continue;
    Entry& ours = at->second;
    if (ours.reduction != theirs.reduction) return two_reductions(name, ours.reduction, theirs.reduction);
    if (!theirs.any) continue;
    if (ours.reduction == Reduction::kMean || ours.reduction == Reduction::kSum) {
      ours.sum.add(theirs.sum);
      ours.weight.add(theirs.weight);
      ours.any = true;
    } else {
      accumulate(ours, theirs.extreme, 1);
    }
  }
  return {};
}

std::optional<double> MetricSet::value(std::string_view name) const {
  const auto at = entries_.find(name);
  if (at == entries_.end() || !at->second.any) return std::nullopt;
  const Entry& entry = at->second;
  if (entry.reduction == Reduction::kSum) return entry.sum.value();
  if (entry.reduction != Reduction::kMean) return entry.extreme;
  if (entry.weight.value() == 0) return std::nullopt;
  return entry.sum.value() / entry.weight.value();
}

Result<double> MetricSet::named(std::string_view name, std::string_view key) const {
  if (const std::optional<double> found = value(name)) return *found;
  std::vector<std::string> names;
  for (MetricValue& one : values()) names.push_back(std::move(one.name));
  std::string next = did_you_mean(name, names);
  if (next.empty()) next = "the validation has " + join(names, ", ");
  return Error{ErrorKind::kConfig, fmt::format("the validation has no metric {}", quote(name)), std::string(key),
               std::move(next)};
}

std::vector<MetricValue> MetricSet::values() const {
  std::vector<MetricValue> all;
  for (const auto& [name, entry] : entries_) {
    if (const auto number = value(name)) all.push_back({name, *number});
  }
  return all;
}

namespace {

constexpr size_t kNumbersPerEntry = 7;

}  // namespace

void MetricSet::save(StateWriter& writer, const std::string& key) const {
  std::vector<std::string> names;
  std::vector<double> numbers;
  for (const auto& [name, entry] : entries_) {
    names.push_back(name);
    for (const double number : {static_cast<double>(entry.reduction), entry.sum.high, entry.sum.low, entry.weight.high,
                                entry.weight.low, entry.extreme, entry.any ? 1.0 : 0.0})
      numbers.push_back(number);
  }
  writer.put_texts(key + ".names", names);
  writer.put_vector(key + ".numbers", numbers);
}

Result<> MetricSet::load(StateReader& reader, const std::string& key) {
  const std::vector<std::string> names = TRY(reader.get_texts(key + ".names"));
  const std::vector<double> numbers = TRY(reader.get_vector<double>(key + ".numbers"));
  const Error damaged{ErrorKind::kData, fmt::format("the saved metrics '{}' are damaged", key), "",
                      "use another checkpoint"};
  if (numbers.size() != names.size() * kNumbersPerEntry) return damaged;
  entries_.clear();
  for (size_t i = 0; i < names.size(); ++i) {
    const double* n = &numbers[i * kNumbersPerEntry];
    if (!(n[0] >= 0 && n[0] <= static_cast<double>(Reduction::kLast))) return damaged;
    const auto reduction = static_cast<Reduction>(static_cast<int>(n[0]));
    entries_.emplace(names[i], Entry{reduction, {n[1], n[2]}, {n[3], n[4]}, n[5], n[6] != 0.0});
  }
  return {};
}

}  // namespace mortise
