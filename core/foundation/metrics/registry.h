// MetricSet: numbers collected over micro-batches, threads and plugins, and combined so that the result does not depend
// on the split of the batch.
//
// Each name has (sum, weight), or a maximum, minimum or last value. Sums have twice the precision of a double
// (error-free transformations, Knuth 1969), so another split or order of the parts gives the same double. An engine
// name must be in metrics/names.h. A plugin's name may be new, but keeps its first reduction.
// Thread rule: one thread at a time; collect per thread and merge().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/base/stateful.h"
#include "foundation/metrics/names.h"

namespace mortise {

struct MetricValue {
  std::string name;
  double value = 0;
};

class MetricSet {
 public:
  // Engine numbers; the reduction comes from the table. `weight` matters for means only: sum = mean * weight.
  // An unknown name is a bug: it aborts in debug builds and is logged once otherwise (then kept as a mean).
  void add(std::string_view name, double sum, double weight = 1.0);
  // The same with a mean instead of a sum.
  void add_mean(std::string_view name, double mean, double weight) { add(name, mean * weight, weight); }
  // mean, max and min of `values` under prefix/mean, /max, /min; nothing for an empty list.
  void add_summary(std::string_view prefix, const std::vector<double>& values);

  // Numbers of plugins, with any name of printable characters. Refuses an engine name with another reduction, a name
  // seen before with another one, and names beyond the limits.
  Result<> add_user(std::string_view name, double sum, double weight, Reduction reduction);

  // Parts gathered elsewhere; `other` counts as later for kLast. Refuses a name with two reductions.
  Result<> merge(const MetricSet& other);

  // Nothing for an unknown name, or a mean of weight 0. NaN stays NaN.
  [[nodiscard]] std::optional<double> value(std::string_view name) const;
  // That of a validation's metrics which the setting `key` names. An Error of kind kConfig says that there is none.
  [[nodiscard]] Result<double> named(std::string_view name, std::string_view key) const;
  // All that have a value, sorted by name.
  [[nodiscard]] std::vector<MetricValue> values() const;
  // Exactly as it is, under keys that begin with `key`.
  void save(StateWriter& writer, const std::string& key) const;
  Result<> load(StateReader& reader, const std::string& key);

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  void clear() { entries_.clear(); }

 private:
  struct Sum {
    double high = 0, low = 0;
    void add(double value);
    void add(const Sum& other);
    [[nodiscard]] double value() const { return high + low; }
  };
  struct Entry {
    Reduction reduction;
    Sum sum;
    Sum weight;
    double extreme = 0;  // kMax, kMin, kLast
    bool any = false;
  };
  static void accumulate(Entry& entry, double sum, double weight);

  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace mortise
