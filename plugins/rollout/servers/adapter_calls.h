// The calls that load a LoRA adapter and unload those before it, in the form that vLLM and SGLang share.
#pragma once

#include <string>
#include <vector>

#include "json_answer.h"
#include "protocol.h"

namespace mortise {

// The adapter that samples goes last, when the next one is there. A server that was started again has none of them.
inline std::vector<HttpCall> change_adapter(const std::string& load_path, const std::string& unload_path,
                                            const std::string& folder, const ServerFacts& facts) {
  std::vector<HttpCall> calls;
  const auto unload = [&](const std::string& name) {
    const AnswerJson body = {{"lora_name", name}};
    calls.push_back({unload_path, json_line(body), false, false, true});
  };
  for (const std::string& name : facts.left_adapters) unload(name);
  const AnswerJson load = {{"lora_name", facts.next_adapter}, {"lora_path", folder}};
  calls.push_back({load_path, json_line(load), false, false});
  if (!facts.adapter.empty()) unload(facts.adapter);
  return calls;
}

}  // namespace mortise
