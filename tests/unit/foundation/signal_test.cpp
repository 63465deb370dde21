// What the first and the second stop signal do.
#include "foundation/base/signal.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace mortise {
namespace {

TEST(StopSignalsDeathTest, WhileLoadingTheFirstEndsTheProcessWithItsCode) {
  for (const int signal : {SIGINT, SIGTERM}) {
    EXPECT_EXIT(
        {
          install_stop_signals();
          std::raise(signal);
          std::exit(0);
        },
        ::testing::ExitedWithCode(8), "mortise: stopped by a signal");
  }
}

TEST(StopSignals, TheFirstIsAFlag) {
  install_stop_signals();
  take_stop_requests();
  EXPECT_FALSE(stop_requested());
  EXPECT_FALSE(stop_flag().load());
  std::raise(SIGTERM);
  EXPECT_EQ(stop_signal(), SIGTERM);
  EXPECT_TRUE(stop_flag().load());
  set_stop_signal(0);
  EXPECT_FALSE(stop_requested());
  EXPECT_FALSE(stop_flag().load());
  std::raise(SIGPIPE);  // ignored: the process lives
}

// Ctrl-C goes to all ranks: one may hear of it from another before it gets its own.
TEST(StopSignals, OneOfAnotherProcessIsNotTheFirst) {
  install_stop_signals();
  take_stop_requests();
  follow_stop_signal(0);
  EXPECT_FALSE(stop_requested());
  follow_stop_signal(SIGINT);
  EXPECT_EQ(stop_signal(), SIGINT);
  EXPECT_TRUE(stop_flag().load());
  std::raise(SIGTERM);  // a request: the process lives
  EXPECT_EQ(stop_signal(), SIGTERM);
  set_stop_signal(0);
  EXPECT_FALSE(stop_requested());
  EXPECT_FALSE(stop_flag().load());
}

TEST(StopSignalsDeathTest, TheSecondEndsTheProcessWithItsCode) {
  EXPECT_EXIT(
      {
        install_stop_signals();
        take_stop_requests();
        std::raise(SIGINT);
        ::usleep(1'100'000);
        std::raise(SIGINT);
        std::exit(0);
      },
      ::testing::ExitedWithCode(8), "stopped at once by a second signal; this step is not saved");
}

// A scheduler that signals a process and its group sends one request twice. The kernel stops both until they are let
// through together, so that no time passes between them.
TEST(StopSignalsDeathTest, TwoAtOnceAreOneRequest) {
  const auto get_two = [] {
    install_stop_signals();
    take_stop_requests();
    sigset_t both, before;
    sigemptyset(&both);
    sigaddset(&both, SIGTERM);
    sigaddset(&both, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &both, &before);
    std::raise(SIGTERM);
    std::raise(SIGINT);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    std::exit(stop_requested() ? 0 : 1);
  };
  EXPECT_EXIT(get_two(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace mortise
