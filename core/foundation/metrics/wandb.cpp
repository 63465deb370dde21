// W&B's offline folder. See trackers.h. protozero writes the messages.
//
//   file     = ":W&B" | u16 0xbee1 | u8 0 | LevelDB's log format in blocks of 32 KiB:
//   fragment = u32 crc32(type, bytes) | u16 size | u8 type (1 whole, 2 first, 3 middle, 4 last) | bytes; little-endian.
//              No fragment crosses a block. Fewer than 7 bytes at the end of a block are zeros.
//   record   = wandb_internal.Record { 1: num | 2: history | 3: summary | 17: run | 18: exit | 21: header }
//   history  = { 1: item { 2: nested_key, 16: value_json } | 2: step { 1: num } }, summary = { 1: update, the same }
//   run      = { 1: id | 3: project | 4: config { 1: update { 1: key, 16: value_json } } | 8: display_name | 13: host |
//              17: start_time { 1: seconds, 2: nanos } }
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <boost/crc.hpp>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <protozero/pbf_writer.hpp>

#include "foundation/metrics/record_file.h"
#include "foundation/metrics/trackers.h"

namespace mortise {
namespace {

constexpr size_t kBlock = 32768, kFragmentHead = 7;
constexpr std::string_view kFileHead("\x3a\x57\x26\x42\xe1\xbe\x00", 7);

void append_fragment(std::string& out, uint8_t type, std::string_view bytes) {
  boost::crc_32_type crc;
  crc.process_byte(type);
  crc.process_bytes(bytes.data(), bytes.size());
  const auto sum = static_cast<uint32_t>(crc.checksum());
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>((sum >> shift) & 0xFF);
  out += static_cast<char>(bytes.size() & 0xFF);
  out += static_cast<char>(bytes.size() >> 8);
  out += static_cast<char>(type);
  out += bytes;
}

// A record in fragments, for a file that has `at` bytes before it.
std::string fragments_of(std::string_view record, size_t at) {
  std::string out;
  bool is_first = true;
  while (true) {
    const size_t left = kBlock - (at + out.size()) % kBlock;
    if (left < kFragmentHead) {
      out.append(left, '\0');
      continue;
    }
    const std::string_view part = record.substr(0, left - kFragmentHead);
    record.remove_prefix(part.size());
    const bool is_last = record.empty();
    append_fragment(out, is_first ? (is_last ? 1 : 2) : (is_last ? 4 : 3), part);
    if (is_last) return out;
    is_first = false;
  }
}

std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return dump_json(Json(value));
}

template <class Write>
std::string message(const Write& write) {
  std::string bytes;
  protozero::pbf_writer writer(bytes);
  write(writer);
  return bytes;
}

void add_item(protozero::pbf_writer& parent, const std::string& name, const std::string& json) {
  protozero::pbf_writer item(parent, 1);
  item.add_string(2, name);
  item.add_string(16, json);
}

// "20261125_225418".
std::string time_name(int64_t now_ns) {
  const auto seconds = static_cast<std::time_t>(now_ns / 1'000'000'000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &parts);
  return {text.data(), size};
}

std::string new_id(Env& env) {
  constexpr std::string_view kDigits = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::array<std::byte, 8> random{};
  env.random_bytes(random);
  std::string id;
  for (const std::byte one : random) id += kDigits[static_cast<size_t>(one) % kDigits.size()];
  return id;
}

class WandbSink final : public MetricSink {
 public:
  WandbSink(Env& env, const Path& path, std::string id)
      : env_(&env), file_(RecordFile::in_place_of(env, path)), id_(std::move(id)) {}

  // The whole file so far, which replaces that of the process before this one.
  Result<> begin(const TrackedRun& run) {
    start_ns_ = env_->wall_time_ns();
    file_.add(kFileHead);
    add_record(21, message([](auto& header) {
                 protozero::pbf_writer version(header, 1);
                 version.add_string(1, "mortise");
                 version.add_string(2, "0.70.0");  // the oldest wandb that reads these records
               }));
    add_record(17, run_record(run));
    for (const MetricRow& row : run.earlier) add_row(row);
    return file_.flush();
  }

  Result<> write(const MetricRow& row) override {
    if (row.keys.empty() || row.values.empty()) return {};
    add_row(row);
    return file_.flush();
  }
  Result<> sync() override { return file_.flush(); }  // only charts: a resume writes the file again
  Result<> close() override {
    if (!is_closed_) add_record(18, message([](auto& exit) { exit.add_int32(1, 0); }));
    is_closed_ = true;
    return file_.close();
  }

 private:
  void add_record(protozero::pbf_tag_type tag, const std::string& bytes) {
    const std::string record = message([&](auto& writer) {
      writer.add_int64(1, ++num_records_);
      writer.add_message(tag, bytes);
      protozero::pbf_writer info(writer, 200);
      info.add_string(1, id_);
    });
    file_.add(fragments_of(record, file_.size()));
  }

  void add_row(const MetricRow& row) {
    const int64_t step = row.keys.front().second, now = env_->wall_time_ns();
    const auto add_items = [&](protozero::pbf_writer& parent) {
      for (const MetricValue& metric : row.values) add_item(parent, metric.name, json_number(metric.value));
      add_item(parent, "_timestamp", json_number(static_cast<double>(now) * 1e-9));
      add_item(parent, "_runtime", json_number(static_cast<double>(now - start_ns_) * 1e-9));
      add_item(parent, "_step", std::to_string(step));
    };
    add_record(3, message(add_items));
    add_record(2, message([&](auto& history) {
                 add_items(history);
                 protozero::pbf_writer number(history, 2);
                 number.add_int64(1, step);
               }));
  }

  std::string run_record(const TrackedRun& run) {
    return message([&](protozero::pbf_writer& writer) {
      writer.add_string(1, id_);
      writer.add_string(3, run.project);
      {
        protozero::pbf_writer config(writer, 4);
        for (const auto& [key, value] : run.config.items()) {
          protozero::pbf_writer item(config, 1);
          item.add_string(1, key);
          item.add_string(16, dump_json(value));
        }
      }
      writer.add_string(8, run.experiment);
      std::array<char, 256> host{};
      if (::gethostname(host.data(), host.size() - 1) == 0) writer.add_string(13, host.data());
      protozero::pbf_writer start(writer, 17);
      start.add_int64(1, start_ns_ / 1'000'000'000);
      start.add_int32(2, static_cast<int32_t>(start_ns_ % 1'000'000'000));
    });
  }

  Env* env_;
  RecordFile file_;
  std::string id_;
  int64_t start_ns_ = 0, num_records_ = 0;
  bool is_closed_ = false;
};

}  // namespace

Result<std::unique_ptr<MetricSink>> make_wandb_sink(Env& env, const TrackedRun& run) {
  const char* const given = std::getenv("WANDB_DIR");
  const Path base = given != nullptr && *given != '\0' ? Path(given) : run.dir;
  std::string name = TRY(tracked_name(env, run, "wandb"));  // "offline-run-TIME-ID"
  if (name.empty()) {
    name = fmt::format("offline-run-{}-{}", time_name(env.wall_time_ns()), new_id(env));
    TRY(remember_tracked_name(env, run, "wandb", name));
  }
  const std::string id = name.substr(name.rfind('-') + 1);
  const Path folder = base / "wandb" / name;
  TRY(env.create_dirs(folder / "files"));
  auto sink = std::make_unique<WandbSink>(env, folder / fmt::format("run-{}.wandb", id), id);
  TRY(sink->begin(run));
  return std::unique_ptr<MetricSink>(std::move(sink));
}

}  // namespace mortise
