// The answer of a reward service to a request of so many rows: {"rewards": [...]} or the list alone, an entry a row: a
// number; null where the reward does not apply; {"score": number, NAME: number, ...}; {"error": "why"}.
// Cost: the parsed answer in memory. No exception of the JSON library leaves read_http_answer.
#pragma once

#include <cstddef>
#include <string>

namespace mortise {

// Takes what an answer says, row by row.
class HttpAnswerSink {
 public:
  virtual ~HttpAnswerSink() = default;
  virtual void reward(std::size_t row, double value) = 0;
  virtual void note(std::size_t row, const std::string& name, double value) = 0;
  virtual void failed(std::size_t row, const std::string& why) = 0;
};

// Empty, or why the answer counts for no row: then the sink has taken nothing.
std::string read_http_answer(const std::string& text, std::size_t num_rows, HttpAnswerSink& sink);

}  // namespace mortise
