// What adapter_config.json says of the tensors of a LoRA adapter that came one by one. B holds the scale, so alpha = r.
// Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace mortise {

class AdapterTensors {
 public:
  // Is this the name of such a tensor, and not of a weight?
  static bool has(std::string_view name) { return name.rfind("base_model.model.", 0) == 0; }
  void add(std::string_view name, const std::int64_t* shape);
  void clear() { *this = AdapterTensors(); }
  [[nodiscard]] bool empty() const { return modules_.empty(); }
  // Fails if modules have different ranks, which servers do not load.
  [[nodiscard]] std::string config() const;

 private:
  std::set<std::string> modules_;  // "q_proj"
  std::int64_t rank_ = 0;
  bool is_uneven_ = false;
};

}  // namespace mortise
