// Messages from a worker (foreign code) and to it. The first byte is the number of a message, and the rest its body; with
// kStream, a stream of frames. An accepted message encodes to the same bytes again.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "fuzz/fuzz_support.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/step_area.h"

namespace mortise {
namespace {

constexpr uint8_t kStream = 0;                      // no message has this number
constexpr uint64_t kMostBytes = uint64_t{1} << 20;  // size of an area, for speed

template <class T>
void read_message(std::string_view body) {
  T message;
  if (!decode(body, message).ok()) return;
  const std::string written = encode(message);
  T again;
  fuzz::require(decode(written, again).ok() && encode(again) == written, "a message survives encoding");
}

void read_stream(std::string_view bytes) {
  std::array<int, 2> ends{};
  fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, "there are sockets");
  Channel channel{Fd(ends[0])};
  {
    const Fd writer(ends[1]);
    const size_t count = std::min<size_t>(bytes.size(), 32768);  // that the socket takes without a reader
    fuzz::require(::send(writer.get(), bytes.data(), count, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(count),
                  "the bytes were sent");
  }
  for (size_t num_frames = 0;; ++num_frames) {
    fuzz::require(num_frames <= bytes.size(), "the stream ends");
    const auto frame = channel.receive(0);
    if (!frame.ok() || !frame->has_value()) return;
    fuzz::require((*frame)->body.size() <= bytes.size(), "a body lies in the stream");
  }
}

// A call that passes its check has all of its arrays inside the areas that it names.
void read_call(std::string_view body) {
  ComputeMessage message;
  if (!decode(body, message).ok() || message.input_bytes > kMostBytes || message.output_bytes > kMostBytes) return;
  if (!check_message(kPolicyLossSteps, message).ok()) return;
  std::vector<std::max_align_t> input(message.input_bytes / sizeof(std::max_align_t) + 1);
  std::vector<std::max_align_t> output(message.output_bytes / sizeof(std::max_align_t) + 1);
  const StepCall call = open_call(kPolicyLossSteps, message, reinterpret_cast<const std::byte*>(input.data()),
                                  reinterpret_cast<std::byte*>(output.data()));
  float sum = 0;
  for (const float value : call.columns.get<float>("log_prob")) sum += value;
  for (const int64_t offset : call.columns.layout.row_offsets) sum += static_cast<float>(offset);
  for (const float value : call.rewards) sum += value;
  for (const NamedOutput& one : call.outputs) std::fill(one.values.begin(), one.values.end(), sum);
}

}  // namespace

void fuzz::run_one(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const std::string_view body = as_text(data + 1, size - 1);
  switch (data[0]) {
    case kStream:
      return read_stream(body);
    case kLoad:
      return read_message<LoadMessage>(body);
    case kFork:
      return read_message<WorkerMessage>(body);
    case kHello:
      return read_message<HelloMessage>(body);
    case kLoaded:
      return read_message<LoadedMessage>(body);
    case kForkFailed:
      return read_message<ForkFailedMessage>(body);
    case kExited:
      return read_message<ExitedMessage>(body);
    case kPiece:
      return read_message<PieceMessage>(body);
    case kLoadState:
      return read_message<StateMessage>(body);
    case kCompute:
      return read_call(body);
    case kReady:
      return read_message<ReadyMessage>(body);
    case kRow:
      return read_message<RowMessage>(body);
    case kLog:
      return read_message<LogMessage>(body);
    case kComputed:
      return read_message<ComputedMessage>(body);
    case kError:
      return (void)decode_error(body);
    default:
      return;
  }
}

}  // namespace mortise
