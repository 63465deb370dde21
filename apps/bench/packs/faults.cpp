// A row that works for a while, crashes or hangs, as its completion says: what bench_rewards measures.
#include <chrono>
#include <csignal>
#include <mortise/cpp/mortise.hpp>
#include <thread>

namespace {

struct Busy : mortise::Reward {
  static constexpr const char* summary = "works for `work_us`, crashes on \"crash\", hangs on \"hang\"";
  std::int64_t work_us = param("work_us", 500, "processor time of a row").at_least(0);

  double score(const mortise::Row& row) const {
    if (row.completion() == "crash") std::raise(SIGSEGV);
    while (row.completion() == "hang") std::this_thread::sleep_for(std::chrono::seconds(1));
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(work_us);
    while (std::chrono::steady_clock::now() < end) {
    }
    return 1;
  }
};

}  // namespace

MORTISE_REWARD("busy", Busy)
MORTISE_PACK()
