// See shared_episodes.h.
#include "train/sampling/shared_episodes.h"

#include <string>
#include <utility>
#include <vector>

#include "foundation/base/hints.h"
#include "plugin/worker/channel.h"

namespace mortise {

namespace {

std::string encode_answers(const std::vector<EpisodeAnswer>& answers) {
  Encoder out;
  out.u64(answers.size());
  for (const auto& [episode, done, reward, messages, num_calls, num_failed_calls, failure] : answers) {
    out.i64(episode).i64(done ? 1 : 0).f64(reward).text(messages);
    out.i64(num_calls).i64(num_failed_calls).text(failure);
  }
  return out.bytes();
}

Result<std::vector<EpisodeAnswer>> decode_answers(std::string_view bytes) {
  Decoder in(bytes);
  std::vector<EpisodeAnswer> answers(in.count(sizeof(int64_t)));
  for (EpisodeAnswer& answer : answers) {
    answer.episode = in.i64();
    answer.done = in.i64() != 0;
    answer.reward = in.f64();
    answer.messages = in.text();
    answer.num_calls = in.i64();
    answer.num_failed_calls = in.i64();
    answer.failure = in.text();
  }
  if (in.done()) return answers;
  return Error{ErrorKind::kInternal, "the answers of an environment on another rank cannot be read", "",
               hints::kOneBuildOfRanks};
}

class SharedEpisodes : public EpisodeRunner {
 public:
  SharedEpisodes(std::unique_ptr<EpisodeRunner> own, Communicator& ranks, int group_size)
      : own_(std::move(own)), ranks_(&ranks), group_size_(group_size) {}

  [[nodiscard]] const std::string& label() const override { return own_->label(); }
  [[nodiscard]] const std::string& description() const override { return own_->description(); }

  void begin(EpisodeStart start) override {
    ++num_calls_;
    if (runs_them()) own_->begin(std::move(start));
  }

  void act(EpisodeAction action) override {
    ++num_calls_;
    if (runs_them()) own_->act(std::move(action));
  }

  Result<> advance(int wait_ms, const Sink& sink) override {
    if (num_calls_ == 0) return {};
    std::vector<EpisodeAnswer> answers;
    if (runs_them()) TRY(own_->advance(wait_ms, [&](EpisodeAnswer answer) { answers.push_back(std::move(answer)); }));
    Communicator* const group = TRY(ranks_->neighbours(group_size_));
    const std::vector<std::string> all = TRY(group->exchange(encode_answers(answers), "turns"));
    answers = TRY(decode_answers(all.front()));
    num_calls_ -= static_cast<int64_t>(answers.size());
    for (EpisodeAnswer& answer : answers) sink(std::move(answer));
    return {};
  }

  [[nodiscard]] bool is_idle() const override { return num_calls_ == 0; }

  Result<> close() override {
    num_calls_ = 0;
    return own_->close();
  }

 private:
  [[nodiscard]] bool runs_them() const { return ranks_->rank() % group_size_ == 0; }

  std::unique_ptr<EpisodeRunner> own_;
  Communicator* ranks_;
  int group_size_;
  int64_t num_calls_ = 0;  // that have no answer yet
};

}  // namespace

std::unique_ptr<EpisodeRunner> share_episodes(std::unique_ptr<EpisodeRunner> own, Communicator& ranks, int group_size) {
  return std::make_unique<SharedEpisodes>(std::move(own), ranks, group_size);
}

}  // namespace mortise
