// Messages from a worker (foreign code) and to it. The first byte chooses a message; the rest is its body, or a stream
// of frames. An accepted message encodes to the same bytes again.
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

constexpr uint64_t kMostBytes = uint64_t{1} << 20;  // of an area, for speed

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
  using Reader = void (*)(std::string_view);
  static constexpr std::array kReaders = {Reader{read_message<HelloMessage>},
                                          Reader{read_message<LoadMessage>},
                                          Reader{read_message<LoadedMessage>},
                                          Reader{read_message<WorkerMessage>},
                                          Reader{read_message<ForkFailedMessage>},
                                          Reader{read_message<ExitedMessage>},
                                          Reader{read_message<ReadyMessage>},
                                          Reader{read_message<PieceMessage>},
                                          Reader{read_message<RowMessage>},
                                          Reader{read_message<StateMessage>},
                                          Reader{read_message<LogMessage>},
                                          Reader{[](std::string_view body) { (void)decode_error(body); }},
                                          Reader{read_stream},
                                          Reader{read_call},
                                          Reader{read_message<ComputedMessage>}};
  if (size == 0) return;
  kReaders[data[0] % kReaders.size()](fuzz::as_text(data + 1, size - 1));
}

}  // namespace mortise
