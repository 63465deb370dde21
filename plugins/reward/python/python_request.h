// The rows of a call as the JSON that python_driver.py reads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <mortise/cpp/reward.hpp>

namespace mortise {

// The arguments that the function takes, so that nothing unused is sent.
class Wanted {
 public:
  Wanted() = default;  // all
  explicit Wanted(std::vector<std::string> names) : all_(false), names_(std::move(names)) {}
  [[nodiscard]] bool has(std::string_view name) const;

 private:
  bool all_ = true;
  std::vector<std::string> names_;
};

// `indices` are places in `rows`.
std::string trl_request(const std::vector<Row>& rows, const std::vector<std::size_t>& indices, const Wanted& wanted,
                        std::int64_t max_steps);
// `truth` is the dotted path of ground_truth; empty: reward_model.ground_truth, ground_truth or answer.
std::string verl_request(const std::vector<Row>& rows, const std::vector<std::size_t>& indices, const Wanted& wanted,
                         const std::string& truth);

// The ground truth as JSON; "null" if the row has none.
std::string ground_truth(const Row& row, const std::string& path);

}  // namespace mortise
