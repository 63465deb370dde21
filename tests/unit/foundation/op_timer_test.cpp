// OpTimer: a listener sees the timers as they nest; without a listener nothing happens.
#include "foundation/metrics/op_timer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace mortise {
namespace {

class OpRecorder final : public OpListener {
 public:
  void begins(const char* name) override { seen.push_back(std::string("begin ") + name); }
  void ends(double flops, double bytes) override {
    seen.push_back("end " + std::to_string(static_cast<int>(flops)) + " " + std::to_string(static_cast<int>(bytes)));
  }
  std::vector<std::string> seen;
};

TEST(OpTimer, TellsTheListenerOfNestedOperations) {
  OpRecorder recorder;
  op_listener = &recorder;
  {
    const OpTimer stage("gen");
    { const OpTimer product("linear", 6, 12); }
    const OpTimer softmax("softmax", [] { return OpWork{0, 8}; });
  }
  op_listener = nullptr;
  const std::vector<std::string> expected{"begin gen",     "begin linear", "end 6 12",
                                          "begin softmax", "end 0 8",      "end 0 0"};
  EXPECT_EQ(recorder.seen, expected);
}

// A listener that leaves while a timer is open still gets the end that belongs to the begin.
TEST(OpTimer, PairsItsCallsIfTheListenerChanges) {
  OpRecorder recorder;
  op_listener = &recorder;
  {
    const OpTimer timer("open");
    op_listener = nullptr;
  }
  { const OpTimer later("unheard"); }
  {
    const OpTimer later("unheard", [] {
      ADD_FAILURE() << "work is counted, and nobody listens";
      return OpWork();
    });
  }
  EXPECT_EQ(recorder.seen, (std::vector<std::string>{"begin open", "end 0 0"}));
}

}  // namespace
}  // namespace mortise
