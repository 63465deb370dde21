// Writes the saved state of a MetricSet as bytes, and reads it back.
#include "plugin/worker/metric_bytes.h"

#include <algorithm>

#include "plugin/worker/channel.h"

namespace mortise {

namespace {

constexpr const char* kObject = "ranks";
constexpr const char* kKey = "metrics";

}  // namespace

std::string encode_metrics(const MetricSet& metrics) {
  StateSnapshot snapshot;
  StateWriter writer(kObject, &snapshot);
  metrics.save(writer, kKey);
  Encoder out;
  out.u64(snapshot.tensors.size());
  for (const TensorView& tensor : snapshot.tensors) {
    out.text(tensor.name).i64(static_cast<int64_t>(tensor.dtype));
    out.text({reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()});
  }
  return out.bytes();
}

Result<MetricSet> decode_metrics(std::string_view bytes) {
  Decoder in(bytes);
  StateSnapshot snapshot;
  snapshot.scalars[kObject];
  for (size_t left = in.count(1); left > 0; --left) {
    TensorView& tensor = snapshot.tensors.emplace_back();
    tensor.name = in.text();
    tensor.dtype = static_cast<DType>(in.i64());
    const std::string& kept = snapshot.owned.emplace_back(in.text());
    tensor.bytes = std::as_bytes(std::span(kept));
    tensor.shape = {static_cast<int64_t>(kept.size() / dtype_bytes(tensor.dtype))};
  }
  std::ranges::sort(snapshot.tensors, {}, &TensorView::name);
  if (!in.done()) return Error{ErrorKind::kInternal, "the metrics of another rank cannot be read", "", ""};
  StateReader reader(kObject, &snapshot, "another rank");
  MetricSet metrics;
  TRY(metrics.load(reader, kKey));
  return metrics;
}

}  // namespace mortise
