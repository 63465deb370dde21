// Answers of the process of the reward `python` belong to their requests: a fork that comes back, a thread that answers
// later, and code that writes to the socket never give a row the reward of another one.
#include <gmock/gmock.h>

#include "python_reward_fixture.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class PythonForks : public PythonReward {
 protected:
  // A function that writes bytes of the completion "forge" to every descriptor, and else returns the completions as
  // numbers. frame(body, request, process) is in python_process.h's form; `own` is the number of the current request.
  RewardCall forger(const std::string& bytes) {
    return make(R"(
import json, os, struct
own = 1
def frame(body, request, process):
    body = json.dumps(body).encode()
    return struct.pack("<QQQ", len(body), request, process) + body
def batch(rewards):
    return {"rewards": rewards, "errors": {}, "values": {}, "metrics": {}, "done": True, "log": []}
def reward(completions, **kwargs):
    global own
    own += 1
    if completions[0] == "forge":
        for fd in range(3, 64):
            try:
                os.write(fd, )" +
                bytes + R"()
            except OSError:
                pass
    return [9.0 if c == "forge" else float(c) for c in completions]
)");
  }
  // The batch of the forger fails with a reason, and later ones have their own rewards.
  void expect_seen(const std::string& bytes) {
    SCOPED_TRACE(bytes);
    auto plugin = forger(bytes);
    ASSERT_NE(plugin.plugin.self, nullptr) << plugin.plugin.call.error;
    give_time(plugin, 60'000);
    EXPECT_EQ(plugin.score(completions({"1", "2"})), (std::vector<double>{1, 2}));
    EXPECT_EQ(shown(plugin.score(completions({"forge", "4"}))), (std::vector<double>{-99, -99}));
    for (const int64_t row : {0, 1}) {
      EXPECT_THAT(failure(plugin, row), AllOf(HasSubstr("its code forked and the child returned"),
                                              HasSubstr("file descriptor"), HasSubstr("os._exit(0)")));
    }
    EXPECT_EQ(plugin.score(completions({"5", "6"})), (std::vector<double>{5, 6}));
    EXPECT_EQ(plugin.score(completions({"7"})), (std::vector<double>{7}));
  }
};

TEST_F(PythonForks, AForkThatComesBackChangesNoReward) {
  for (const char* fork : {"os.fork()", "ctypes.CDLL(None).fork()"}) {
    SCOPED_TRACE(fork);
    auto plugin = make(std::string(R"(
import ctypes, os
calls = 0
def reward(completions, **kwargs):
    global calls
    calls += 1
    if calls == 2:
        )") + fork + R"(
    return [float(c) for c in completions]
)");
    give_time(plugin, 60'000);
    for (double first = 1; first < 20; first += 2) {
      const std::string one = std::to_string(first), other = std::to_string(first + 1);
      EXPECT_EQ(plugin.score(completions({one, other})), (std::vector<double>{first, first + 1})) << failure(plugin, 0);
    }
  }
}

TEST_F(PythonForks, AForkInARowOfVerlChangesNoReward) {
  for (const char* kind : {"", "async "}) {
    SCOPED_TRACE(kind);
    auto plugin = make(std::string("import os\n") + kind + R"(def compute_score(solution_str, ground_truth):
    if solution_str == "3":
        os.fork()
    return float(solution_str)
)");
    give_time(plugin, 60'000);
    EXPECT_EQ(plugin.score(verl_rows({"1", "2", "3", "4"})), (std::vector<double>{1, 2, 3, 4})) << failure(plugin, 3);
    for (int batch = 0; batch < 5; ++batch)
      EXPECT_EQ(plugin.score(verl_rows({"5", "6", "7", "8"})), (std::vector<double>{5, 6, 7, 8})) << failure(plugin, 0);
  }
}

// As a pool of processes does: the child's own code runs as ever.
TEST_F(PythonForks, AChildThatEndsItselfIsLeftAlone) {
  auto plugin = make(R"(
import multiprocessing, os
def twice(text):
    return 2 * float(text)
def reward(completions, **kwargs):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(twice, completions)
)");
  give_time(plugin, 60'000);
  EXPECT_EQ(plugin.score(completions({"1", "2", "3"})), (std::vector<double>{2, 4, 6})) << failure(plugin, 0);
  EXPECT_EQ(plugin.score(completions({"4"})), (std::vector<double>{8})) << failure(plugin, 0);
}

TEST_F(PythonForks, AForkThatComesBackFromTheImportIsEnded) {
  auto plugin = make("import os\nos.fork()\ndef reward(completions, **kw): return [float(c) for c in completions]");
  give_time(plugin, 60'000);
  for (const char* text : {"1", "2", "3"})
    EXPECT_EQ(plugin.score(completions({text})), (std::vector<double>{std::stod(text)})) << failure(plugin, 0);
}

// An exception that ends the loop would leave the tasks of the other rows to the loop of the next batch.
TEST_F(PythonForks, NoTaskIsLeftToTheNextBatch) {
  auto plugin = make(R"(
import asyncio
async def compute_score(solution_str, ground_truth):
    if solution_str == "stop":
        raise KeyboardInterrupt
    if solution_str == "late":
        await asyncio.sleep(0.05)
        return 9
    await asyncio.sleep(0.3)
    return float(solution_str)
)");
  give_time(plugin, 60'000);
  EXPECT_EQ(shown(plugin.score(verl_rows({"stop", "late"}))), (std::vector<double>{-99, 9}));
  EXPECT_THAT(failure(plugin, 0), HasSubstr("KeyboardInterrupt"));
  EXPECT_EQ(plugin.score(verl_rows({"1", "2"})), (std::vector<double>{1, 2})) << failure(plugin, 1);
}

TEST_F(PythonForks, WhatIsNoAnswerToTheRequestFailsTheBatch) {
  expect_seen("b'hello, this is the log of a reward function'");
  expect_seen("frame(batch([8.0, 8.0]), own - 1, os.getpid())");
  expect_seen("frame(batch([8.0, 8.0]), own, os.getpid() + 1)");
  expect_seen("frame(batch([8.0]), own, os.getpid())");
  expect_seen("frame({'row': 0, 'reward': 8.0, 'values': {}}, own, os.getpid())");
  expect_seen("frame(dict(batch([8.0, 8.0]), errors={'2': 'no'}), own, os.getpid())");
  expect_seen("frame(dict(batch([8.0, 8.0]), metrics={'a': [1]}), own, os.getpid())");
  expect_seen("struct.pack('<QQQ', 1 << 40, own, os.getpid())");
}

TEST_F(PythonForks, AThreadThatAnswersLaterFailsTheNextBatch) {
  auto plugin = make(R"(
import json, os, struct, threading, time
def late():
    time.sleep(0.1)
    body = json.dumps({"rewards": [9.0], "errors": {}, "values": {}, "metrics": {}, "done": True}).encode()
    for fd in range(3, 64):
        try:
            os.write(fd, struct.pack("<QQQ", len(body), 2, os.getpid()) + body)
        except OSError:
            pass
def reward(completions, **kwargs):
    if completions[0] == "1":
        threading.Thread(target=late).start()
    else:
        time.sleep(0.5)
    return [float(c) for c in completions]
)");
  give_time(plugin, 60'000);
  EXPECT_EQ(plugin.score(completions({"1"})), (std::vector<double>{1}));
  EXPECT_EQ(shown(plugin.score(completions({"2"}))), (std::vector<double>{-99}));
  EXPECT_THAT(failure(plugin, 0), HasSubstr("an answer to another request came from the Python process"));
  EXPECT_EQ(plugin.score(completions({"3"})), (std::vector<double>{3}));
}

// Rows that were answered before may be another request's too.
TEST_F(PythonForks, ASecondAnswerForARowFailsItsBatch) {
  auto plugin = make(R"(
import json, os, struct
def compute_score(solution_str, ground_truth):
    if solution_str == "forge":
        body = json.dumps({"row": 0, "reward": 9.0, "values": {}}).encode()
        for fd in range(3, 64):
            try:
                os.write(fd, struct.pack("<QQQ", len(body), 2, os.getpid()) + body)
            except OSError:
                pass
    return float(len(solution_str))
)");
  give_time(plugin, 60'000);
  EXPECT_EQ(shown(plugin.score(verl_rows({"1", "forge", "333"}))), (std::vector<double>{-99, -99, -99}));
  EXPECT_THAT(failure(plugin, 0), HasSubstr("a second answer for a row came from the Python process"));
  EXPECT_EQ(plugin.score(verl_rows({"22"})), (std::vector<double>{2}));
}

}  // namespace
}  // namespace mortise::test
