// TensorBoard event files: scalars that `tensorboard --logdir RUN` shows. protozero writes the messages, Boost.CRC the
// checks; there is no protobuf library in the process.
//
//   file    = record*
//   record  = u64 length | u32 mask(crc32c(length's 8 bytes)) | bytes[length] | u32 mask(crc32c(bytes)) little-endian
//   mask(c) = (c rotated right by 15) + 0xa282ead8
//   bytes   = Event { 1: double wall_time (s), 2: int64 step,
//                     3: string file_version | 5: Summary { 1: repeated Value } | 7: SessionLog { 1: enum status } }
//   Value   = { 1: string tag, 2: float simple_value }
// The first record is the file_version "brain.Event:2". The second is a SessionLog with status START at the first step
// of this file: readers drop what they have read before of steps from there on.
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <boost/crc.hpp>
#include <cstring>
#include <protozero/pbf_writer.hpp>

#include "foundation/metrics/sinks.h"

namespace mortise {
namespace {

uint32_t masked_crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const uint32_t sum = static_cast<uint32_t>(crc.checksum());
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8u;
}

template <class T>
void append_little_endian(std::string& out, T value) {
  std::array<char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(T));
  out.append(bytes.data(), bytes.size());
}

std::string record_of(std::string_view bytes) {
  std::string record;
  append_little_endian<uint64_t>(record, bytes.size());
  append_little_endian<uint32_t>(record, masked_crc32c(record));
  record += bytes;
  append_little_endian<uint32_t>(record, masked_crc32c(bytes));
  return record;
}

// Readers take files in the order of their names, so the time comes first.
Result<std::unique_ptr<WritableFile>> open_events(Env& env, const Path& dir) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'h', 'o', 's', 't'};
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t now = env.wall_time_ns();
  const std::string prefix = fmt::format("events.out.tfevents.{}.{}.{}.{}.", now / kSecond,
                                         std::to_string(kSecond + now % kSecond).substr(1), host.data(), ::getpid());
  return env.open_for_write(dir / unique_name(env, prefix), WriteMode::kExclusive);
}

class TensorboardSink final : public MetricSink {
 public:
  TensorboardSink(Env& env, std::unique_ptr<WritableFile> file) : env_(&env), file_(std::move(file)) {}

  Result<> write_head(int64_t first_step) {
    unwritten_ = head(first_step);
    return flush();
  }

  Result<> write(const MetricRow& row) override {
    if (row.keys.empty() || row.values.empty()) return {};
    if (unwritten_.empty()) first_unwritten_ = row.keys.front().second;
    std::string event;
    protozero::pbf_writer writer(event);
    writer.add_double(1, now_s());
    writer.add_int64(2, row.keys.front().second);
    {
      protozero::pbf_writer summary(writer, 5);
      for (const MetricValue& metric : row.values) {
        protozero::pbf_writer value(summary, 1);
        value.add_string(1, metric.name);
        value.add_float(2, static_cast<float>(metric.value));
      }
    }
    unwritten_ += record_of(event);
    return flush();
  }
  Result<> sync() override { return flush(); }  // only charts: a resume adds its own file
  Result<> close() override {
    TRY(flush());
    TRY(file_->sync());
    return file_->close();
  }

 private:
  Result<> flush() {
    if (unwritten_.empty()) return {};
    if (is_torn_) return go_on_in_a_new_file();
    const Result<> written = file_->append_text(unwritten_);
    is_torn_ = !written.ok();
    if (written.ok()) unwritten_.clear();
    return written;
  }

  // Behind a record that is not whole, readers see nothing more of a file.
  Result<> go_on_in_a_new_file() {
    auto file = TRY(open_events(*env_, file_->path().parent_path()));
    const Result<> written = file->append_text(head(first_unwritten_) + unwritten_);
    if (!written.ok()) {
      (void)env_->unlink(file->path());
      return written;
    }
    file_ = std::move(file);
    unwritten_.clear();
    is_torn_ = false;
    return {};
  }

  std::string head(int64_t first_step) {
    std::string version;
    protozero::pbf_writer writer(version);
    writer.add_double(1, now_s());
    writer.add_string(3, "brain.Event:2");
    constexpr int32_t kStart = 1;
    std::string start;
    protozero::pbf_writer event(start);
    event.add_double(1, now_s());
    event.add_int64(2, first_step);
    {
      protozero::pbf_writer session(event, 7);
      session.add_enum(1, kStart);
    }
    return record_of(version) + record_of(start);
  }

  double now_s() { return static_cast<double>(env_->wall_time_ns()) * 1e-9; }

  Env* env_;
  std::unique_ptr<WritableFile> file_;
  std::string unwritten_;  // records that are not whole in the file
  int64_t first_unwritten_ = 0;
  bool is_torn_ = false;
};

}  // namespace

Result<std::unique_ptr<MetricSink>> make_tensorboard_sink(Env& env, const Path& dir, int64_t first_step) {
  TRY(env.create_dirs(dir));
  auto file = TRY(open_events(env, dir));
  auto sink = std::make_unique<TensorboardSink>(env, std::move(file));
  TRY(sink->write_head(first_step));
  return std::unique_ptr<MetricSink>(std::move(sink));
}

}  // namespace mortise
