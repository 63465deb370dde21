// A MetricSet as bytes, for the other ranks. The bytes keep every bit of its sums.
#pragma once

#include <string>
#include <string_view>

#include "foundation/base/result.h"
#include "foundation/metrics/registry.h"

namespace mortise {

std::string encode_metrics(const MetricSet& metrics);
Result<MetricSet> decode_metrics(std::string_view bytes);

}  // namespace mortise
