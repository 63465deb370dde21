// Runs a call with its deadline, turns failures into errors, and checks the outputs.
#include "plugin/host/guard.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>

#include "foundation/base/clock.h"
#include "foundation/base/cpu_clones.h"
#include "foundation/base/text.h"
#include "plugin/host/process_watch.h"
#include "plugin/host/running_code.h"

namespace mortise {
namespace {

struct Outcome {
  int32_t code = MORTISE_OK;
  std::string thrown;  // what a plugin threw, against the rules
};

Outcome run_catching(mortise_call& call, const std::function<int32_t(mortise_call*)>& slot) {
  try {
    return {slot(&call), {}};
  } catch (const std::exception& e) {
    return {MORTISE_INTERNAL, std::string("threw an exception: ") + e.what()};
  } catch (...) {
    return {MORTISE_INTERNAL, "threw something that is not a std::exception"};
  }
}

}  // namespace

Error guard_error(const CallSite& site, std::string what, std::string next) {
  std::string where = fmt::format("{}, {}", site.identity->label, site.slot);
  if (site.step > 0) where += ", step " + std::to_string(site.step);
  return {ErrorKind::kPlugin, std::move(what), std::move(where), std::move(next)};
}

Result<> run_guarded(const CallSite& site, mortise_call& call, int64_t timeout_ms,
                     const std::function<int32_t(mortise_call*)>& slot, double* seconds) {
  const Stopwatch watch;
  const bool is_own = timeout_ms > 0 && (site.limit_ms == 0 || timeout_ms <= site.limit_ms);
  if (!is_own) timeout_ms = site.limit_ms;
  if (timeout_ms > 0) call.deadline_ns = default_env().monotonic_ns() + timeout_ms * 1'000'000;
  Outcome outcome;
  std::string changed;
  {
    const RunningCode running(site.identity->label, site.slot, site.step, site.may_end_program ? site.limit_ms : 0);
    const ProcessWatch process;
    outcome = run_catching(call, slot);
    changed = process.take_change();
  }
  *seconds = watch.elapsed_s();

  if (!outcome.thrown.empty()) {
    return guard_error(site, outcome.thrown, "a slot must return a status instead; tell the pack's author");
  }
  if (!changed.empty()) {
    return guard_error(site, fmt::format("changed {}, which a plugin must leave as it is (rule R20)", changed),
                       "tell the pack's author");
  }
  const bool stopping = call.cancelled != nullptr && call.cancelled->load(std::memory_order_relaxed);
  if (outcome.code == MORTISE_CANCELLED && stopping) {
    Error error = guard_error(site, "stopped, as the run is stopping");
    error.kind = ErrorKind::kSignal;
    return error;
  }
  if (timeout_ms > 0 && *seconds * 1e3 > static_cast<double>(timeout_ms)) {
    const std::string own_words = call.fail_text.empty() ? "" : call.fail_text + "; it ";
    return guard_error(site,
                       fmt::format("{}took {}, its limit is {}", own_words, format_duration(*seconds),
                                   format_duration(static_cast<double>(timeout_ms) * 1e-3)),
                       is_own ? "raise its timeout or make it faster" : "raise plugins.call_timeout or make it faster");
  }
  if (outcome.code != MORTISE_OK || call.fail_code != MORTISE_OK) {
    const int32_t code = outcome.code != MORTISE_OK ? outcome.code : call.fail_code;
    std::string what = "failed with " + status_name(code);
    if (!call.fail_text.empty()) what = fmt::format("{} ({})", call.fail_text, status_name(code));
    if (outcome.code == MORTISE_OK) what += ", but returned 0";
    return guard_error(site, std::move(what));
  }
  if (!call.misuse.empty()) return guard_error(site, call.misuse, "tell the pack's author");
  return {};
}

std::string token_place(const Layout& layout, size_t t) {
  const auto& offsets = layout.row_offsets;
  const auto it = std::upper_bound(offsets.begin(), offsets.end(), static_cast<int64_t>(t));
  const auto row = static_cast<size_t>(it - offsets.begin()) - 1;
  if (it == offsets.begin() || row + 1 >= offsets.size()) return "element " + std::to_string(t);
  std::string text = fmt::format("token {} of row {}", static_cast<int64_t>(t) - offsets[row], row);
  if (row < layout.row_id.size()) text += fmt::format(" (row {} of the update)", layout.row_id[row]);
  return text;
}

namespace {

constexpr size_t kSettled = 256;

bool counts(const CountedCells& counted, size_t t) {
  return counted.mask[t] != 0 && (counted.weight.empty() || counted.weight[t] != 0.0F);
}

// All ones for the kSettled cells that count, else 0; weight may be null. Here and below loops of one length without
// branches: what the compiler makes SIMD of.
MORTISE_INLINE void mark_counted(const uint8_t* __restrict mask, const float* __restrict weight,
                                 uint32_t* __restrict marks) {
  if (weight == nullptr) {
    for (size_t i = 0; i < kSettled; ++i) marks[i] = 0U - static_cast<uint32_t>(mask[i] != 0);
  } else {
    for (size_t i = 0; i < kSettled; ++i) {
      marks[i] = (0U - static_cast<uint32_t>(mask[i] != 0)) & (0U - static_cast<uint32_t>(weight[i] != 0.0F));
    }
  }
}

constexpr uint32_t kSign = 0x80000000U, kExponent = 0x7F800000U;  // an exponent of all ones: infinite or NaN

// Whether there is nothing to do, as nearly always: numbers where the mark is set, zeros elsewhere.
MORTISE_INLINE bool is_settled(const float* values, const uint32_t* marks) {
  uint32_t unmarked = 0, greatest = 0;
  for (size_t i = 0; i < kSettled; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    unmarked |= bits & ~marks[i];
    greatest = std::max(greatest, bits & ~kSign);
  }
  return unmarked == 0 && greatest < kExponent;
}

// Zeroes unmarked values. Returns false, and changes nothing, if a marked value is not finite.
MORTISE_INLINE bool settle_block(float* values, const uint32_t* marks) {
  if (is_settled(values, marks)) return true;
  uint32_t bits[kSettled];
  std::memcpy(bits, values, sizeof bits);
  for (size_t i = 0; i < kSettled; ++i) bits[i] &= marks[i];
  for (const uint32_t value : bits) {
    if ((value & kExponent) == kExponent) return false;
  }
  std::memcpy(values, bits, sizeof bits);
  return true;
}

// The number of cells settled: whole blocks, up to the first that holds something that is no number.
MORTISE_CPU_CLONES size_t settle_blocks(std::span<const NamedOutput> outputs, const CountedCells& counted) {
  size_t done = 0;
  for (bool good = true; good && done + kSettled <= counted.mask.size();) {
    uint32_t marks[kSettled];
    mark_counted(counted.mask.data() + done, counted.weight.empty() ? nullptr : counted.weight.data() + done, marks);
    for (const NamedOutput& output : outputs) {
      good = good && (output.values.empty() || settle_block(output.values.data() + done, marks));
    }
    if (good) done += kSettled;
  }
  return done;
}

// The same for the cells from `begin` on, one by one.
Result<> settle_rest(const CallSite& site, const NamedOutput& output, size_t begin, const Layout& layout,
                     const CountedCells& counted) {
  for (size_t t = begin; t < output.values.size(); ++t) {
    float& value = output.values[t];
    if (!counts(counted, t)) {
      value = 0.0F;
    } else if (!std::isfinite(value)) {
      const std::string text = std::isnan(value) ? "nan" : format_f64(value);  // without its sign
      const bool is_loss = output.name != "advantages" && output.name != "returns";
      return guard_error(site,
                         fmt::format("wrote {} to output {} at {}", text, quote(output.name), token_place(layout, t)),
                         is_loss ? "look at the inputs of that token; a loss must stay finite for large ratios"
                                 : "look at groups of equal rewards, of one row, and at rows without a reward");
    }
  }
  return {};
}

}  // namespace

Result<> settle_outputs(const CallSite& site, std::span<const NamedOutput> outputs, const Layout& layout,
                        const CountedCells& counted) {
  const size_t done = settle_blocks(outputs, counted);
  for (const NamedOutput& output : outputs) TRY(settle_rest(site, output, done, layout, counted));
  return {};
}

}  // namespace mortise
