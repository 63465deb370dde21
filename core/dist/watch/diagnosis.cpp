// The rules, most certain first: a rank that failed, a lost store, a silent rank, a rank that is late.
#include "dist/watch/diagnosis.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "foundation/base/text.h"

namespace mortise {

namespace {

// Ranks come and go between shorter waits.
constexpr double kLongWait_s = 30;

Verdict blame(int rank, std::string cause) { return {rank, std::move(cause)}; }

bool is_alive(const RankView& view) { return view.state.status == RankStatus::kRunning && !view.has_ended; }

// It ended without a word. A state that is not final says nothing: the rank may have written its error, or that its run
// is done, before the store was gone. Only the rank that serves the store cannot end well before this rank has heard it.
bool was_killed(const Situation& s, size_t rank) {
  const RankView& view = s.ranks[rank];
  if (!view.has_ended || view.state.status != RankStatus::kRunning) return false;
  return view.is_final || static_cast<int>(rank) == s.store_rank;
}

// Errors that a rank reported, and processes that are no more: certain, whatever this rank does.
std::optional<Verdict> certain_failure(const Situation& s) {
  for (size_t i = 0; i < s.ranks.size(); ++i) {
    const RankView& view = s.ranks[i];
    const int rank = static_cast<int>(i);
    if (rank == s.rank) continue;
    if (view.state.status == RankStatus::kFailed)
      return blame(rank, fmt::format("{} ended {} with an error: {}", view.description, place_text(view.state),
                                     view.state.error));
    if (was_killed(s, i))
      return blame(rank, fmt::format("{} was killed or crashed {}", view.description, place_text(view.state)));
  }
  return std::nullopt;
}

// How long a rank may say nothing: less once a collective has failed, because somebody's connection has closed.
double silence_limit_s(const Situation& s, const WatchLimits& limits) {
  return s.call_failed ? std::min(limits.dead_s, limits.answer_s) : limits.answer_s;
}

std::optional<Verdict> store_failure(const Situation& s, const WatchLimits& limits) {
  const bool silent = s.store_silent_s > silence_limit_s(s, limits);
  if (!s.store_lost && !silent) return std::nullopt;
  const bool by_rank = s.store_rank >= 0 && static_cast<size_t>(s.store_rank) < s.ranks.size();
  const std::string last =
      by_rank ? fmt::format(": it was last {}", place_text(s.ranks[static_cast<size_t>(s.store_rank)].state)) : "";
  const std::string who = by_rank ? s.ranks[static_cast<size_t>(s.store_rank)].description
                                  : fmt::format("the store of the group at {}", s.store_address);
  if (s.store_lost) return blame(s.store_rank, fmt::format("{} has closed its connections{}", who, last));
  return blame(s.store_rank, fmt::format("{} has not answered for {:.0f} s{}", who, s.store_silent_s, last));
}

// The rank whose messages stay away, the longest silent one. Messages come through the store, so a rank is silent only
// for as long as the store answers without news of it.
std::optional<Verdict> silent_rank(const Situation& s, const WatchLimits& limits) {
  const double limit = silence_limit_s(s, limits) + s.store_silent_s;
  int worst = -1;
  for (size_t i = 0; i < s.ranks.size(); ++i) {
    const RankView& view = s.ranks[i];
    if (static_cast<int>(i) == s.rank || !is_alive(view) || view.silent_s <= limit) continue;
    if (worst < 0 || view.silent_s > s.ranks[static_cast<size_t>(worst)].silent_s) worst = static_cast<int>(i);
  }
  if (worst < 0) return std::nullopt;
  const RankView& view = s.ranks[static_cast<size_t>(worst)];
  return blame(worst, fmt::format("{} has not answered for {:.0f} s: it was last {}", view.description, view.silent_s,
                                  place_text(view.state)));
}

void name_a_few(std::vector<std::string>& texts) {
  constexpr size_t kMaxNamed = 8;
  if (texts.size() <= kMaxNamed) return;
  const size_t more = texts.size() - kMaxNamed;
  texts.resize(kMaxNamed);
  texts.push_back(fmt::format("{} more", more));
}

// "the ranks 1, 3 and 5", "all ranks".
std::string ranks_text(const RankSet& ranks) {
  if (!ranks.is_part()) return "all ranks";
  std::vector<std::string> texts;
  for (int i = 0; i < ranks.count; ++i) texts.push_back(std::to_string(ranks.first + i * ranks.step));
  name_a_few(texts);
  const std::string last = texts.back();
  texts.pop_back();
  return texts.empty() ? "rank " + last : fmt::format("the ranks {} and {}", join(texts, ", "), last);
}

// It waits in the call of this rank, as far as its state shows. Threads of a rank may wait in calls of their own, while
// others compute: only the same ranks and the same stage are a sign.
bool is_in_same_call(const Situation& s, const RankView& view) {
  return view.state.waits && view.state.awaits == s.awaits && view.state.stage == s.waits_in;
}

// Those that this rank's call concerns, other than itself.
std::vector<const RankView*> others_of_call(const Situation& s) {
  std::vector<const RankView*> others;
  for (size_t i = 0; i < s.ranks.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (rank != s.rank && s.awaits.has(rank) && is_alive(s.ranks[i])) others.push_back(&s.ranks[i]);
  }
  return others;
}

// The ranks that this rank's call leads to, over the calls in which they wait, without this rank. Nothing if one of them
// does not wait, or not for so long, or may compute in another thread.
std::vector<const RankView*> ranks_of_circle(const Situation& s, double seconds) {
  std::vector<uint8_t> is_reached(s.ranks.size(), 0);
  is_reached[static_cast<size_t>(s.rank)] = 1;
  std::vector<const RankView*> reached;
  const auto reach = [&](const RankSet& awaits) {
    for (size_t i = 0; i < s.ranks.size(); ++i) {
      if (is_reached[i] != 0 || !awaits.has(static_cast<int>(i))) continue;
      is_reached[i] = 1;
      reached.push_back(&s.ranks[i]);
    }
  };
  reach(s.awaits);
  for (size_t next = 0; next < reached.size(); ++next) {
    const RankView& view = *reached[next];
    if (!is_alive(view) || !view.state.waits || view.waits_s < seconds) return {};
    if (view.state.awaits.is_aside) return {};
    reach(view.state.awaits);
  }
  return reached;
}

// "rank 2 (process 77 on node1) in 'tensor parallel' for the ranks 2 and 3".
std::vector<std::string> circle_texts(const Situation& s, double seconds) {
  std::vector<std::string> texts;
  if (!s.waits || !s.awaits.is_part() || s.awaits.is_aside || s.waited_s < seconds) return texts;
  bool is_one_call = true;
  for (const RankView* const view : ranks_of_circle(s, seconds)) {
    is_one_call = is_one_call && is_in_same_call(s, *view);
    texts.push_back(
        fmt::format("{} in '{}' for {}", view->description, view->state.stage, ranks_text(view->state.awaits)));
  }
  if (is_one_call) texts.clear();
  name_a_few(texts);
  return texts;
}

// Ranks that answer, but do not come to the collective in which this rank waits.
struct LateRanks {
  int first = -1;  // the one to blame
  std::vector<std::string> texts;
};

LateRanks late_ranks(const Situation& s) {
  LateRanks late;
  bool first_waits = false;  // for another late one: then that one is to blame
  const auto find_late = [&](const auto& is_late) {
    for (size_t i = 0; i < s.ranks.size(); ++i) {
      const RankView& view = s.ranks[i];
      if (static_cast<int>(i) == s.rank || !is_late(i, view)) continue;
      if (late.first < 0 || (first_waits && !view.state.waits)) {
        late.first = static_cast<int>(i);
        first_waits = view.state.waits;
      }
      late.texts.push_back(fmt::format("{} is still {}", view.description, place_text(view.state)));
    }
  };
  const auto computes = [](size_t, const RankView& view) { return is_alive(view) && !view.state.waits; };
  // A call of some ranks only is not counted. They wait for each other if all are in it, and else for others.
  const auto is_here = [&s](const RankView* view) { return is_in_same_call(s, *view); };
  if (s.awaits.is_part() && std::ranges::all_of(others_of_call(s), is_here)) return late;
  if (!circle_texts(s, kLongWait_s).empty()) return late;
  if (s.awaits.is_part())
    find_late([&](size_t i, const RankView& view) { return s.awaits.has(static_cast<int>(i)) && computes(i, view); });
  if (late.texts.empty()) find_late([&](size_t, const RankView& view) { return view.state.calls < s.calls; });
  if (late.texts.empty()) find_late(computes);
  name_a_few(late.texts);
  return late;
}

std::optional<Verdict> late_rank(const Situation& s, const WatchLimits& limits) {
  if (!s.waits) return std::nullopt;
  for (size_t i = 0; i < s.ranks.size(); ++i) {
    const RankState& state = s.ranks[i].state;
    const bool done = state.status == RankStatus::kLeft || state.status == RankStatus::kGone;
    if (static_cast<int>(i) != s.rank && done && s.waited_s > std::min(limits.dead_s, limits.wait_s))
      return blame(static_cast<int>(i),
                   fmt::format("{} has finished its run while others still work", s.ranks[i].description));
  }
  if (s.waited_s <= limits.wait_s) return std::nullopt;
  const LateRanks late = late_ranks(s);
  if (const std::string circle = circle_text(s, kLongWait_s); late.texts.empty() && !circle.empty())
    return blame(
        -1, fmt::format("ranks wait for each other in different calls, this one for {:.0f} s: {}", s.waited_s, circle));
  if (late.texts.empty())
    return blame(-1, fmt::format("{} wait for each other for {:.0f} s in the same collective",
                                 s.awaits.is_part() ? "the ranks of a group" : "all ranks", s.waited_s));
  return blame(late.first, fmt::format("ranks waited {:.0f} s: {}", s.waited_s, join(late.texts, ", ")));
}

}  // namespace

std::string encode(const Verdict& verdict) { return fmt::format("{}\n{}", verdict.rank, verdict.cause); }

std::optional<Verdict> decode_verdict(std::string_view text) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const auto rank = parse_i64(text.substr(0, end));
  if (!rank) return std::nullopt;
  return Verdict{static_cast<int>(*rank), std::string(text.substr(end + 1))};
}

std::optional<Verdict> diagnose(const Situation& s, const WatchLimits& limits) {
  if (auto verdict = certain_failure(s)) return verdict;
  if (auto verdict = store_failure(s, limits)) return verdict;
  if (auto verdict = silent_rank(s, limits)) return verdict;
  return late_rank(s, limits);
}

std::string late_ranks_text(const Situation& s) { return join(late_ranks(s).texts, ", "); }

std::string circle_text(const Situation& s, double seconds) { return join(circle_texts(s, seconds), ", "); }

std::string all_wait_text(const Situation& s, double seconds) {
  if (!s.waits || s.waited_s < seconds || !late_ranks(s).texts.empty()) return {};
  std::vector<std::string> texts;
  for (const RankView* const view : others_of_call(s)) {
    if (view->waits_s < seconds || !is_in_same_call(s, *view)) return {};
    texts.push_back(view->description);
  }
  name_a_few(texts);
  return join(texts, ", ");
}

bool is_awaited(const Situation& s) {
  if (s.waits) return false;
  for (size_t i = 0; i < s.ranks.size(); ++i) {
    const RankView& view = s.ranks[i];
    if (static_cast<int>(i) == s.rank || !is_alive(view) || !view.state.waits) continue;
    const RankSet& awaits = view.state.awaits;
    if (awaits.is_part() ? awaits.has(s.rank) : view.state.calls > s.calls) return true;
  }
  return false;
}

}  // namespace mortise
