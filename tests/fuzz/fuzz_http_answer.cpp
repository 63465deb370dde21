// The answer of a reward service: the first byte is the number of rows that were sent, the rest the answer. Every row is
// told of at most once, and an answer that counts for no row gives none.
#include <cmath>
#include <vector>

#include "fuzz/fuzz_support.h"
#include "reward/http/http_answer.h"

namespace mortise {
namespace {

class Checked final : public HttpAnswerSink {
 public:
  explicit Checked(std::size_t num_rows) : told_(num_rows) {}
  void reward(std::size_t row, double value) override {
    tell(row);
    fuzz::require(std::isfinite(value), "a reward is a finite number");
  }
  void note(std::size_t row, const std::string& name, double value) override {
    fuzz::require(row < told_.size() && told_[row], "a note comes behind its reward");
    fuzz::require(!name.empty() && std::isfinite(value), "a note has a name and a finite number");
  }
  void failed(std::size_t row, const std::string&) override { tell(row); }
  [[nodiscard]] bool is_empty() const { return num_told_ == 0; }

 private:
  void tell(std::size_t row) {
    fuzz::require(row < told_.size() && !told_[row], "a row of the request, for the first time");
    told_[row] = true;
    ++num_told_;
  }
  std::vector<bool> told_;
  std::size_t num_told_ = 0;
};

}  // namespace

void fuzz::run_one(const uint8_t* data, size_t size) {
  if (size == 0) return;
  Checked sink(data[0]);
  const std::string fault = read_http_answer(std::string(as_text(data + 1, size - 1)), data[0], sink);
  require(fault.empty() || sink.is_empty(), "a refused answer counts for no row");
}

}  // namespace mortise
