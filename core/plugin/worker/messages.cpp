// Encodes and decodes each message of the protocol.
#include "plugin/worker/messages.h"

#include <fmt/core.h>

#include <utility>

#include "foundation/base/hints.h"
#include "foundation/formats/json.h"
#include "plugin/host/instance.h"
#include "plugin/host/registry.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/episode_messages.h"

namespace mortise {
namespace {

Result<> finish(const Decoder& in, const char* what) {
  if (in.done()) return {};
  return Error{ErrorKind::kPlugin, fmt::format("a message '{}' cannot be read", what), "connection to a worker",
               hints::kOneBuildOfWorkers};
}

int64_t flag(bool value) { return value ? 1 : 0; }

// CBOR keeps every double, infinities included.
std::string params_text(const Json& params) {
  const std::vector<uint8_t> bytes = Json::to_cbor(params);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

bool is_answer(uint32_t kind) {
  switch (kind) {
    case kLoaded:
    case kRow:
    case kDone:
    case kState:
    case kComputed:
    case kAnswer:
    case kDescription:
      return true;
    default:
      return false;
  }
}

void put_metrics(Encoder& out, const std::vector<MetricRecord>& metrics) {
  out.u64(metrics.size());
  for (const MetricRecord& metric : metrics)
    out.text(metric.name).f64(metric.sum).f64(metric.weight).i64(metric.reduction);
}

std::vector<MetricRecord> read_metrics(Decoder& in) {
  std::vector<MetricRecord> metrics(in.count(32));
  for (MetricRecord& metric : metrics) {
    metric.name = in.text();
    metric.sum = in.f64();
    metric.weight = in.f64();
    metric.reduction = static_cast<int32_t>(in.i64());
  }
  return metrics;
}

LoadMessage load_message(const PluginRef& ref, InstanceIdentity identity, const WorkerLimits& limits,
                         const RunKey& key) {
  LoadMessage load;
  load.path = ref.pack->path;
  load.sha256 = ref.pack->sha256;
  load.kind = ref.plugin->kind;
  load.name = ref.plugin->name;
  load.identity = std::move(identity);
  load.limits = limits;
  load.check_writes = key.check_writes;
  return load;
}

std::string encode(const HelloMessage& m) { return Encoder().i64(m.protocol).i64(m.abi_minor).bytes(); }
Result<> decode(std::string_view body, HelloMessage& m) {
  Decoder in(body);
  m.protocol = in.i64();
  m.abi_minor = in.i64();
  return finish(in, "hello");
}

std::string encode(const LoadMessage& m) {
  Encoder out;
  out.text(m.path).text(m.sha256).text(m.kind).text(m.name);
  out.text(m.identity.label).text(m.identity.prefix).text(params_text(m.identity.params)).u64(m.identity.rng_seed);
  out.i64(m.limits.memory_bytes).i64(m.limits.file_bytes).i64(m.limits.open_files).i64(flag(m.limits.network));
  out.i64(flag(m.limits.write_files)).i64(flag(m.limits.start_programs)).i64(flag(m.load_in_worker));
  out.i64(flag(m.check_writes)).i64(m.limits.cpu_ms).i64(m.limits.num_cpus);
  out.i64(flag(m.limits.make_sandboxes)).text(m.limits.memory_where);
  out.i64(m.call_timeout_ms).i64(m.num_threads);
  return out.bytes();
}
Result<> decode(std::string_view body, LoadMessage& m) {
  Decoder in(body);
  for (std::string* text : {&m.path, &m.sha256, &m.kind, &m.name, &m.identity.label, &m.identity.prefix})
    *text = in.text();
  const std::string params = in.text();
  m.identity.rng_seed = in.u64();
  m.limits.memory_bytes = in.i64();
  m.limits.file_bytes = in.i64();
  m.limits.open_files = in.i64();
  m.limits.network = in.i64() != 0;
  m.limits.write_files = in.i64() != 0;
  m.limits.start_programs = in.i64() != 0;
  m.load_in_worker = in.i64() != 0;
  m.check_writes = in.i64() != 0;
  m.limits.cpu_ms = in.i64();
  m.limits.num_cpus = in.i64();
  m.limits.make_sandboxes = in.i64() != 0;
  m.limits.memory_where = in.text();
  m.call_timeout_ms = in.i64();
  m.num_threads = in.i64();
  TRY(finish(in, "load"));
  auto read = parse::parse_cbor(params);
  if (!read) {
    return Error{ErrorKind::kPlugin, "the parameters in a message 'load' cannot be read: " + read.fault().what,
                 "connection to a worker", hints::kOneBuildOfWorkers};
  }
  m.identity.params = *std::move(read);
  return {};
}

std::string encode(const LoadedMessage& m) { return Encoder().i64(m.num_threads).text(m.limits).bytes(); }
Result<> decode(std::string_view body, LoadedMessage& m) {
  Decoder in(body);
  m.num_threads = in.i64();
  m.limits = in.text();
  return finish(in, "loaded");
}

std::string encode(const WorkerMessage& m) { return Encoder().i64(m.worker).bytes(); }
Result<> decode(std::string_view body, WorkerMessage& m) {
  Decoder in(body);
  m.worker = in.i64();
  return finish(in, "worker");
}

std::string encode(const ForkFailedMessage& m) { return Encoder().i64(m.worker).i64(m.code).bytes(); }
Result<> decode(std::string_view body, ForkFailedMessage& m) {
  Decoder in(body);
  m.worker = in.i64();
  m.code = in.i64();
  return finish(in, "fork failed");
}

std::string encode(const ExitedMessage& m) { return Encoder().i64(m.worker).i64(m.status).bytes(); }
Result<> decode(std::string_view body, ExitedMessage& m) {
  Decoder in(body);
  m.worker = in.i64();
  m.status = in.i64();
  return finish(in, "exited");
}

std::string encode(const ReadyMessage& m) {
  return Encoder().i64(m.granularity).i64(flag(m.has_state)).text(m.state).bytes();
}
Result<> decode(std::string_view body, ReadyMessage& m) {
  Decoder in(body);
  m.granularity = in.i64();
  m.has_state = in.i64() != 0;
  m.state = in.text();
  return finish(in, "ready");
}

std::string encode(const PieceMessage& m) {
  Encoder out;
  out.i64(m.first).i64(m.count).u64(m.area_offset).u64(m.area_size).i64(m.row_timeout_ms).i64(m.deadline_ns);
  out.i64(flag(m.new_block)).i64(flag(m.new_area)).i64(flag(m.new_output));
  return out.i64(m.output_rows).u64(m.output_bytes).bytes();
}
Result<> decode(std::string_view body, PieceMessage& m) {
  Decoder in(body);
  m.first = in.i64();
  m.count = in.i64();
  m.area_offset = in.u64();
  m.area_size = in.u64();
  m.row_timeout_ms = in.i64();
  m.deadline_ns = in.i64();
  m.new_block = in.i64() != 0;
  m.new_area = in.i64() != 0;
  m.new_output = in.i64() != 0;
  m.output_rows = in.i64();
  m.output_bytes = in.u64();
  return finish(in, "piece");
}

void put_row_value(Encoder& out, const RowValue& value) {
  out.i64(value.row).text(value.name).f64(value.value).i64(flag(value.text.has_value())).text(value.text.value_or(""));
}

RowValue read_row_value(Decoder& in) {
  RowValue value;
  value.row = in.i64();
  value.name = in.text();
  value.value = in.f64();
  const bool is_text = in.i64() != 0;
  std::string text = in.text();
  if (is_text) value.text = std::move(text);
  return value;
}

std::string encode(const RowMessage& m) {
  Encoder out;
  out.i64(m.first).i64(m.count).text(m.call_error);
  out.u64(m.failed_rows.size());
  for (const FailedRow& row : m.failed_rows) out.i64(row.row).i64(row.code).text(row.text);
  out.u64(m.values.size());
  for (const RowValue& value : m.values) put_row_value(out, value);
  put_metrics(out, m.metrics);
  return out.bytes();
}
Result<> decode(std::string_view body, RowMessage& m) {
  Decoder in(body);
  m.first = in.i64();
  m.count = in.i64();
  m.call_error = in.text();
  m.failed_rows.resize(in.count(24));
  for (FailedRow& row : m.failed_rows) {
    row.row = in.i64();
    row.code = static_cast<int32_t>(in.i64());
    row.text = in.text();
  }
  m.values.resize(in.count(24));
  for (RowValue& value : m.values) value = read_row_value(in);
  m.metrics = read_metrics(in);
  return finish(in, "row");
}

std::string encode(const ComputeMessage& m) {
  Encoder out;
  out.i64(m.step).i64(m.update_index).i64(m.timeout_ms);
  out.i64(m.num_rows).i64(m.num_tokens).i64(m.num_functions).u64(m.columns).u64(m.outputs);
  return out.i64(flag(m.new_input)).i64(flag(m.new_output)).u64(m.input_bytes).u64(m.output_bytes).bytes();
}
Result<> decode(std::string_view body, ComputeMessage& m) {
  Decoder in(body);
  m.step = in.i64();
  m.update_index = in.i64();
  m.timeout_ms = in.i64();
  m.num_rows = in.i64();
  m.num_tokens = in.i64();
  m.num_functions = in.i64();
  m.columns = in.u64();
  m.outputs = in.u64();
  m.new_input = in.i64() != 0;
  m.new_output = in.i64() != 0;
  m.input_bytes = in.u64();
  m.output_bytes = in.u64();
  return finish(in, "compute");
}

std::string encode(const ComputedMessage& m) {
  Encoder out;
  out.text(m.error ? encode(*m.error) : "");
  put_metrics(out, m.metrics);
  return out.i64(flag(m.has_state)).text(m.state).bytes();
}
Result<> decode(std::string_view body, ComputedMessage& m) {
  Decoder in(body);
  const std::string error = in.text();
  if (!error.empty()) m.error = decode_error(error);
  m.metrics = read_metrics(in);
  m.has_state = in.i64() != 0;
  m.state = in.text();
  return finish(in, "computed");
}

std::string encode(const StateMessage& m) { return Encoder().i64(flag(m.has_state)).text(m.bytes).bytes(); }
Result<> decode(std::string_view body, StateMessage& m) {
  Decoder in(body);
  m.has_state = in.i64() != 0;
  m.bytes = in.text();
  return finish(in, "state");
}

std::string encode(const LogMessage& m) { return Encoder().i64(m.level).text(m.line).bytes(); }
Result<> decode(std::string_view body, LogMessage& m) {
  Decoder in(body);
  m.level = in.i64();
  m.line = in.text();
  return finish(in, "log");
}

std::string encode(const Error& error) {
  return Encoder().i64(static_cast<int64_t>(error.kind)).text(error.what).text(error.where).text(error.next).bytes();
}
Error decode_error(std::string_view body) {
  Decoder in(body);
  Error error;
  const int64_t kind = in.i64();
  error.what = in.text();
  error.where = in.text();
  error.next = in.text();
  error.kind =
      kind >= 1 && kind <= static_cast<int64_t>(ErrorKind::kReward) ? static_cast<ErrorKind>(kind) : ErrorKind::kPlugin;
  if (!in.done()) return {ErrorKind::kPlugin, "a worker failed and its reason cannot be read", "", ""};
  return error;
}

OutputArea::OutputArea(std::byte* data, size_t size, size_t num_rows)
    : head(reinterpret_cast<OutputHead*>(data)), rows(num_rows) {
  data += sizeof(OutputHead);
  rewards = reinterpret_cast<double*>(data);
  data += rows * sizeof(double);
  token_rewards = reinterpret_cast<float*>(data);
  tokens = (size - sizeof(OutputHead) - rows * (sizeof(double) + 1)) / sizeof(float);
  done = reinterpret_cast<std::atomic<uint8_t>*>(data + tokens * sizeof(float));
}

size_t OutputArea::bytes(size_t rows, size_t tokens) {
  return sizeof(OutputHead) + rows * (sizeof(double) + 1) + tokens * sizeof(float);
}

}  // namespace mortise
