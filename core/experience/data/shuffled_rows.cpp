// See shuffled_rows.h.
#include "experience/data/shuffled_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "foundation/base/rng.h"

namespace mortise {

size_t ShuffledRows::draw(size_t size) const {
  if (size == 1) return 0;
  RandomStream random({seed_, RandomPurpose::kDataShuffle, 0, static_cast<uint64_t>(num_given_)});
  return static_cast<size_t>(random.next_below(size));
}

Result<PlacedRow> ShuffledRows::read() {
  const int64_t place = files_->num_read();
  std::optional<FileRow> row = TRY(files_->next());
  if (row) return PlacedRow{place, *std::move(row)};
  return Error{ErrorKind::kData, "the data files have fewer rows than when the run began",
               files_->files().empty() ? "" : files_->files().front().path.string(),
               "restore the files, and resume from the last checkpoint"};
}

Result<std::optional<PlacedRow>> ShuffledRows::next() {
  while (static_cast<int64_t>(buffer_.size()) < buffer_size_ && files_->num_read() < num_rows_)
    buffer_.push_back(TRY(read()));
  if (buffer_.empty()) return std::optional<PlacedRow>();
  const size_t drawn = draw(buffer_.size());
  PlacedRow out = std::move(buffer_[drawn]);
  if (files_->num_read() < num_rows_) {
    buffer_[drawn] = TRY(read());
  } else {
    if (drawn + 1 != buffer_.size()) buffer_[drawn] = std::move(buffer_.back());
    buffer_.pop_back();
  }
  ++num_given_;
  return std::optional<PlacedRow>(std::move(out));
}

// The places of the rows that the buffer holds after so many rows, in the buffer's order.
std::vector<int64_t> ShuffledRows::buffered_places(int64_t num_given) {
  std::vector<int64_t> places(static_cast<size_t>(std::min(buffer_size_, num_rows_)));
  std::iota(places.begin(), places.end(), 0);
  auto next = static_cast<int64_t>(places.size());
  for (num_given_ = 0; num_given_ < num_given && !places.empty(); ++num_given_) {
    const size_t drawn = draw(places.size());
    if (next < num_rows_) {
      places[drawn] = next++;
    } else {
      places[drawn] = places.back();
      places.pop_back();
    }
  }
  return places;
}

Result<> ShuffledRows::skip(int64_t num_given) {
  const std::vector<int64_t> places = buffered_places(num_given);
  std::vector<size_t> order(places.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t slot) { return places[slot]; });
  buffer_.resize(places.size());
  for (const size_t slot : order) {
    TRY(files_->skip(places[slot] - files_->num_read()));
    buffer_[slot] = TRY(read());
  }
  const int64_t num_read = std::min(num_rows_, std::min(buffer_size_, num_rows_) + num_given);
  return files_->skip(num_read - files_->num_read());
}

}  // namespace mortise
