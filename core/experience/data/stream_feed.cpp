// Rows that are read again from their files in each epoch: a shuffle buffer per source, encoded a batch at a time.
#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "experience/data/row_feed.h"
#include "experience/data/shuffled_rows.h"
#include "foundation/base/rng.h"
#include "foundation/base/thread_pool.h"

namespace mortise {

namespace {

// The place in one source.
struct SourcePlace {
  int64_t pass = 0;       // how often the epoch began it again
  int64_t num_taken = 0;  // prompts of this pass
  std::optional<ShuffledRows> rows;
};

class StreamFeed : public RowFeed {
 public:
  StreamFeed(const Dataset& dataset, RowOrder order, RowSchedule schedule)
      : dataset_(&dataset),
        order_(std::move(order)),
        schedule_(std::move(schedule)),
        places_(schedule_.num_sources()),
        pool_(std::make_unique<ThreadPool>(dataset.options().num_threads)) {}

  [[nodiscard]] int64_t rows_per_epoch() const override { return schedule_.rows_per_epoch(); }
  Result<> go_to(int64_t epoch, int64_t row, StateReader* saved) override;
  Result<std::vector<Prompt>> take(int64_t num_rows) override;
  void save_state(StateWriter& writer) const override;

 private:
  [[nodiscard]] Result<ShuffledRows> open(size_t source, int64_t pass) const;
  Result<std::vector<Prompt>> take_from(size_t source, int64_t num_rows);
  Result<std::vector<Prompt>> encode(const std::vector<PlacedRow>& rows, const RowFiles& files);

  const Dataset* dataset_;
  RowOrder order_;
  RowSchedule schedule_;
  int64_t epoch_ = 0;
  std::vector<SourcePlace> places_;
  std::unique_ptr<ThreadPool> pool_;
};

Result<ShuffledRows> StreamFeed::open(size_t source, int64_t pass) const {
  TRY(dataset_->check_files_unchanged());
  const bool is_whole = schedule_.num_sources() == 1;
  const StreamedRows& all = dataset_->streamed();
  std::vector<DataFile> files;
  int64_t num_rows = 0;
  for (const DataFile& file : all.files) {
    if (is_whole || file.entry == static_cast<int32_t>(source)) files.push_back(file);
  }
  for (size_t entry = 0; entry < all.rows_of_entry.size(); ++entry) {
    if (is_whole || entry == source) num_rows += all.rows_of_entry[entry];
  }
  const uint64_t key = random_u64({order_.seed, RandomPurpose::kDataShuffle, static_cast<uint64_t>(epoch_), source + 1},
                                  static_cast<uint64_t>(pass));
  return ShuffledRows(dataset_->open_files(std::move(files)), num_rows, order_.shuffle ? order_.shuffle_buffer_size : 1,
                      key);
}

Result<> StreamFeed::go_to(int64_t epoch, int64_t row, StateReader* saved) {
  epoch_ = epoch;
  schedule_.go_to(row);
  std::vector<int64_t> given(places_.size());
  if (saved != nullptr) given = TRY(saved->get_vector<int64_t>("rows_read"));
  if (given.size() != places_.size() || std::ranges::any_of(given, [](int64_t rows) { return rows < 0; })) {
    return Error{ErrorKind::kConfig, "the checkpoint was made with another number of weighted sources",
                 "data.train_weights", "keep the weights of the run, or start over with --resume never"};
  }
  for (size_t s = 0; s < places_.size(); ++s) {
    const int64_t taken = schedule_.counts()[s], size = schedule_.rows_of(s);
    SourcePlace& place = places_[s];
    place.pass = taken == 0 ? 0 : (taken - 1) / size;
    place.num_taken = taken - place.pass * size;
    place.rows.emplace(TRY(open(s, place.pass)));
    TRY(place.rows->skip(given[s]));
  }
  return {};
}

void StreamFeed::save_state(StateWriter& writer) const {
  std::vector<int64_t> given;
  for (const SourcePlace& place : places_) given.push_back(place.rows ? place.rows->num_given() : 0);
  writer.put_vector("rows_read", given);
}

Result<std::vector<Prompt>> StreamFeed::take(int64_t num_rows) {
  std::vector<size_t> sources;
  std::vector<int64_t> wanted(places_.size());
  for (int64_t i = 0; i < num_rows; ++i) {
    sources.push_back(schedule_.next());
    ++wanted[sources.back()];
  }
  std::vector<std::vector<Prompt>> taken(places_.size());
  for (size_t s = 0; s < places_.size(); ++s) taken[s] = TRY(take_from(s, wanted[s]));
  std::vector<size_t> used(places_.size());
  std::vector<Prompt> out;
  for (const size_t s : sources) out.push_back(std::move(taken[s][used[s]++]));
  return out;
}

// Rows that the encoder leaves out, or that are rejects, are replaced by the next ones of the source.
Result<std::vector<Prompt>> StreamFeed::take_from(size_t source, int64_t num_rows) {
  SourcePlace& place = places_[source];
  std::vector<Prompt> out;
  while (static_cast<int64_t>(out.size()) < num_rows) {
    if (place.num_taken == schedule_.rows_of(source)) {
      ++place.pass;
      place.num_taken = 0;
      place.rows.emplace(TRY(open(source, place.pass)));
    }
    const int64_t missing =
        std::min(num_rows - static_cast<int64_t>(out.size()), schedule_.rows_of(source) - place.num_taken);
    std::vector<PlacedRow> rows;
    while (static_cast<int64_t>(rows.size()) < missing) {
      std::optional<PlacedRow> row = TRY(place.rows->next());
      if (!row) break;
      rows.push_back(*std::move(row));
    }
    if (rows.empty()) {
      return Error{ErrorKind::kData, "the data files have fewer usable rows than when the run began",
                   place.rows->files().files().front().path.string(),
                   "restore the files, and resume from the last checkpoint"};
    }
    for (Prompt& prompt : TRY(encode(rows, place.rows->files()))) {
      out.push_back(std::move(prompt));
      ++place.num_taken;
    }
  }
  return out;
}

Result<std::vector<Prompt>> StreamFeed::encode(const std::vector<PlacedRow>& rows, const RowFiles& files) {
  std::vector<std::optional<Prompt>> prompts(rows.size());
  std::mutex mutex;
  std::optional<std::pair<int64_t, Error>> first_error;
  const DatasetOptions& options = dataset_->options();
  pool_->parallel_for(0, static_cast<int64_t>(rows.size()), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PlacedRow& row = rows[static_cast<size_t>(i)];
      auto prompt = encode_file_row(files, row.row, dataset_->encoder());
      if (prompt.ok()) {
        prompts[static_cast<size_t>(i)] = *std::move(prompt);
        if (prompts[static_cast<size_t>(i)]) prompts[static_cast<size_t>(i)]->dataset_row = row.place;
        continue;
      }
      if (options.skip_bad_rows) continue;
      const std::lock_guard lock(mutex);
      if (!first_error || i < first_error->first) first_error = {i, std::move(prompt).error()};
    }
  });
  if (first_error) return std::move(first_error->second);
  std::vector<Prompt> out;
  for (std::optional<Prompt>& prompt : prompts) {
    if (prompt) out.push_back(*std::move(prompt));
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<RowFeed>> make_stream_feed(const Dataset& dataset, const RowOrder& order) {
  RowSchedule schedule = TRY(make_schedule(dataset, order));
  return std::unique_ptr<RowFeed>(std::make_unique<StreamFeed>(dataset, order, std::move(schedule)));
}

}  // namespace mortise
