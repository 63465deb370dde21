// What the trainer and the workers of an environment say to one another (messages.h has the rest of the protocol):
//
//   trainer -> worker   kReset, kAct, kClose: episodes; kDescribe: no body
//   worker -> trainer   kAnswer: one for each episode of kReset and kAct, in order; kDescription: a JSON object
// Threading: plain values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plugin/host/kinds/environment.h"

namespace mortise {

enum EpisodeMessage : uint32_t {
  kReset = 50,
  kAct = 51,
  kClose = 52,
  kDescribe = 53,
  kAnswer = 60,
  kDescription = 61,
};

struct ResetMessage {
  int64_t timeout_ms = 0;  // time limit of each episode; 0: none
  std::vector<EpisodeStart> starts;
};
struct ActMessage {
  int64_t timeout_ms = 0;
  std::vector<EpisodeAction> actions;
};
struct CloseMessage {
  int64_t step = 0;
  std::vector<int64_t> episodes;
};

std::string encode(const ResetMessage& message);
std::string encode(const ActMessage& message);
std::string encode(const CloseMessage& message);
std::string encode(const EpisodeAnswer& answer);

// Each refuses a body that is too short or too long.
Result<> decode(std::string_view body, ResetMessage& message);
Result<> decode(std::string_view body, ActMessage& message);
Result<> decode(std::string_view body, CloseMessage& message);
Result<> decode(std::string_view body, EpisodeAnswer& answer);

}  // namespace mortise
