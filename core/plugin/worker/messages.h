// What the trainer and its workers say to one another. Raise kProtocol with any change.
//
//   trainer -> fork server   kLoad, kFork, kKill
//   fork server -> trainer   kHello, kLoaded, kForkFailed, kExited, kError
//   trainer -> worker        kPiece, kSaveState, kLoadState (rewards); kCompute, kLoadState (losses, estimators)
//   worker -> trainer        kReady, kRow, kDone, kComputed, kState, kLog, kProgress, kError
// Environments have further messages (episode_messages.h).
//
// The fork server is the first process of a pool: it loads the pack and forks the workers, which hold the instances.
// The end of a connection is the order to stop. Answers carry the number of their request (channel.h); what a worker says
// unasked, such as a line for the log, may be older. Threading: plain values.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "plugin/host/host_services.h"
#include "plugin/host/kinds/reward.h"
#include "plugin/worker/limits.h"

namespace mortise {

class Encoder;
class Decoder;
struct PluginRef;
struct RunKey;

// A named number or text of a row, and metrics, in the messages of workers and of ranks.
void put_row_value(Encoder& out, const RowValue& value);
RowValue read_row_value(Decoder& in);
void put_metrics(Encoder& out, const std::vector<MetricRecord>& metrics);
std::vector<MetricRecord> read_metrics(Decoder& in);

inline constexpr int64_t kProtocol = 8;

enum Message : uint32_t {
  kLoad = 1,
  kFork = 2,
  kKill = 3,  // a worker; kExited reports how it ended
  kHello = 10,
  kLoaded = 11,
  kForkFailed = 12,
  kExited = 13,
  kPiece = 20,
  kSaveState = 21,
  kLoadState = 22,
  kCompute = 23,
  kReady = 30,
  kRow = 31,
  kDone = 32,
  kState = 33,
  kLog = 34,
  kProgress = 35,  // a LogMessage for the moving line
  kComputed = 36,
  kError = 40,
};

// Whether it answers the last request, and nothing else.
[[nodiscard]] bool is_answer(uint32_t kind);

struct HelloMessage {
  int64_t protocol = kProtocol;
  int64_t abi_minor = 0;
};

struct LoadMessage {
  std::string path, sha256, kind, name;
  InstanceIdentity identity;
  WorkerLimits limits;
  // The pack starts threads when it is loaded, which a fork would lose: every worker loads it for itself.
  bool load_in_worker = false;
  bool check_writes = false;    // RunKey's
  int64_t call_timeout_ms = 0;  // RunKey's, of losses and estimators
  int64_t num_threads = 1;      // threads of host->parallel_for
};

// How a worker loads the plugin `ref`. What only some kinds need keeps its default.
LoadMessage load_message(const PluginRef& ref, InstanceIdentity identity, const WorkerLimits& limits,
                         const RunKey& key);

struct LoadedMessage {
  int64_t num_threads = 1;  // threads of the fork server, after loading
  std::string limits;       // the limits that hold, for the log
};

struct WorkerMessage {  // for kFork, with the worker's connection as a descriptor, and for kKill
  int64_t worker = 0;
};

struct ForkFailedMessage {
  int64_t worker = 0;
  int64_t code = 0;  // errno of fork
};

struct ExitedMessage {
  int64_t worker = 0;
  int64_t status = 0;  // as of waitpid
};

struct ReadyMessage {
  int64_t granularity = 0;
  bool has_state = false;
  std::string state;
};

// Rows [first, first + count) of an area. With the area's block and the output area as descriptors, each if it is new
// to the worker.
struct PieceMessage {
  int64_t first = 0, count = 0;
  uint64_t area_offset = 0, area_size = 0;  // bytes of the block
  int64_t row_timeout_ms = 0;               // 0: none
  int64_t deadline_ns = 0;                  // when the batch must be done, CLOCK_MONOTONIC; 0: no limit
  bool new_block = false, new_area = false, new_output = false;
  int64_t output_rows = 0;    // that the output area has room for
  uint64_t output_bytes = 0;  // size of the output area
};

// What one call produced in addition to the rewards. Sent before the call counts as done, and only if there is
// anything.
struct RowMessage {
  int64_t first = 0, count = 0;  // rows of the call, counted in the piece
  std::string call_error;        // the whole call failed
  std::vector<FailedRow> failed_rows;
  std::vector<RowValue> values;
  std::vector<MetricRecord> metrics;
};

// A call of `compute`. With the input and the output area as descriptors, each if it is new to the worker. step_area.h
// says where in the areas everything is.
struct ComputeMessage {
  int64_t step = 0, update_index = 0;
  int64_t timeout_ms = 0;  // limit of this call alone; 0: none
  int64_t num_rows = 0, num_tokens = 0, num_functions = 0;
  uint64_t columns = 0;  // bit i: column i of the kind is there
  uint64_t outputs = 0;  // bit i: output i of the kind is wanted
  bool new_input = false, new_output = false;
  uint64_t input_bytes = 0, output_bytes = 0;  // sizes of the areas
};

// What the call produced in addition to its outputs.
struct ComputedMessage {
  std::optional<Error> error;
  std::vector<MetricRecord> metrics;
  bool has_state = false;  // mortise.state/1, as after the call
  std::string state;
};

struct StateMessage {
  bool has_state = false;
  std::string bytes;
};

struct LogMessage {
  int64_t level = 0;
  std::string line;
};

std::string encode(const HelloMessage& message);
std::string encode(const LoadMessage& message);
std::string encode(const LoadedMessage& message);
std::string encode(const WorkerMessage& message);
std::string encode(const ForkFailedMessage& message);
std::string encode(const ExitedMessage& message);
std::string encode(const ReadyMessage& message);
std::string encode(const PieceMessage& message);
std::string encode(const RowMessage& message);
std::string encode(const ComputeMessage& message);
std::string encode(const ComputedMessage& message);
std::string encode(const StateMessage& message);
std::string encode(const LogMessage& message);
std::string encode(const Error& error);

// Each refuses a body that is too short, too long or out of range.
Result<> decode(std::string_view body, HelloMessage& message);
Result<> decode(std::string_view body, LoadMessage& message);
Result<> decode(std::string_view body, LoadedMessage& message);
Result<> decode(std::string_view body, WorkerMessage& message);
Result<> decode(std::string_view body, ForkFailedMessage& message);
Result<> decode(std::string_view body, ExitedMessage& message);
Result<> decode(std::string_view body, ReadyMessage& message);
Result<> decode(std::string_view body, PieceMessage& message);
Result<> decode(std::string_view body, RowMessage& message);
Result<> decode(std::string_view body, ComputeMessage& message);
Result<> decode(std::string_view body, ComputedMessage& message);
Result<> decode(std::string_view body, StateMessage& message);
Result<> decode(std::string_view body, LogMessage& message);
// The error that the peer sent; of kind kPlugin where it cannot be read.
Error decode_error(std::string_view body);

// The head of an output area; the rewards, the marks and the token rewards of a piece follow it.
struct OutputHead {
  std::atomic<int64_t> at_hand;     // first row of the running call, counted in the piece; -1: none
  std::atomic<int64_t> started_ns;  // when that call began
  std::atomic<bool> cancelled;      // set by the trainer
};

// The places of the parts of an output area, which has room for `rows` and `tokens`.
struct OutputArea {
  OutputArea() = default;
  OutputArea(std::byte* data, size_t size, size_t num_rows);
  static size_t bytes(size_t rows, size_t tokens);

  OutputHead* head = nullptr;
  double* rewards = nullptr;             // [rows]
  std::atomic<uint8_t>* done = nullptr;  // [rows] 1: the reward is final
  float* token_rewards = nullptr;        // [tokens]
  size_t rows = 0, tokens = 0;
};

}  // namespace mortise
