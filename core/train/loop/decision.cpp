// Sends decisions and errors between ranks.
#include "train/loop/decision.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "plugin/worker/channel.h"

namespace mortise {

namespace {

std::string encode_decision(const Result<std::string>& decided) {
  Encoder out;
  out.i64(decided.ok() ? 1 : 0);
  if (decided.ok())
    out.text(*decided);
  else
    out.i64(static_cast<int64_t>(decided.error().kind))
        .text(decided.error().what)
        .text(decided.error().where)
        .text(decided.error().next);
  return out.bytes();
}

Result<std::string> decode_decision(std::string_view bytes) {
  Decoder in(bytes);
  if (in.i64() != 0) return in.text();
  Error error;
  error.kind = static_cast<ErrorKind>(in.i64());
  error.what = in.text();
  error.where = in.text();
  error.next = in.text();
  return error;
}

// "rank 2", "ranks 1 and 3".
std::string name_ranks(const std::vector<size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace

Result<std::string> on_main_rank(Communicator& ranks, std::string_view stage,
                                 const std::function<Result<std::string>()>& work) {
  std::string decided;
  if (ranks.is_main()) decided = encode_decision(work());
  return decode_decision(TRY(ranks.broadcast_bytes(decided, 0, stage)));
}

Result<> do_on_main_rank(Communicator& ranks, std::string_view stage, const std::function<Result<>()>& work) {
  const auto with_text = [&]() -> Result<std::string> {
    TRY(work());
    return std::string();
  };
  TRY(on_main_rank(ranks, stage, with_text));
  return {};
}

Result<std::vector<std::string>> on_every_rank(Communicator& ranks, std::string_view stage,
                                               const std::function<Result<std::string>()>& work,
                                               const Meanwhile& meanwhile) {
  const std::vector<std::string> encoded = TRY(ranks.exchange(encode_decision(work()), stage, meanwhile));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < encoded.size(); ++rank) {
    Result<std::string> text = decode_decision(encoded[rank]);
    if (!text.ok() && ranks.size() > 1) text.error().what = fmt::format("rank {}: {}", rank, text.error().what);
    texts.push_back(TRY(std::move(text)));
  }
  return texts;
}

Result<bool> on_any_rank(Communicator& ranks, std::string_view stage, bool value) {
  int64_t count = value ? 1 : 0;
  TRY(ranks.all_reduce_sum(std::span(&count, 1), stage));
  return count > 0;
}

Result<> check_same_on_ranks(Communicator& ranks, std::string_view stage, const std::string& bytes,
                             const Error& unless) {
  return check_same(TRY(ranks.exchange(bytes, stage)), unless);
}

Result<> check_same(std::span<const std::string> all, const Error& unless, size_t step) {
  std::vector<size_t> differing;
  for (size_t first = 0; first < std::min(step, all.size()); ++first) {
    std::map<std::string, int64_t> votes;
    for (size_t rank = first; rank < all.size(); rank += step) ++votes[all[rank]];
    std::string usual = all[first];  // among values with as many votes, that of the lowest rank
    for (size_t rank = first; rank < all.size(); rank += step) {
      if (votes[all[rank]] > votes[usual]) usual = all[rank];
    }
    for (size_t rank = first; rank < all.size(); rank += step) {
      if (all[rank] != usual) differing.push_back(rank);
    }
  }
  if (differing.empty()) return {};
  std::ranges::sort(differing);
  Error error = unless;
  error.what += fmt::format(" of {} differ from those of the other ranks", name_ranks(differing));
  return error;
}

}  // namespace mortise
