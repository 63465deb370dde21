// ConfigUse: which command reads a config, and sets of them.
#pragma once

namespace mortise {

// Which command asks; it decides what must be given.
enum class ConfigUse {
  kTrain,      // model, training files, rewards
  kSft,        // model, training files
  kEval,       // model, validation files, rewards
  kGenerate,   // the model comes from the command line
  kObjective,  // algorithm and actor alone
  kServe,      // the model comes from the command line
};

using Uses = unsigned;  // a bit for each ConfigUse

constexpr Uses uses(ConfigUse use) { return 1U << static_cast<unsigned>(use); }
inline constexpr Uses kInTrain = uses(ConfigUse::kTrain);
inline constexpr Uses kInSft = uses(ConfigUse::kSft);
inline constexpr Uses kInEval = uses(ConfigUse::kEval);
inline constexpr Uses kInGenerate = uses(ConfigUse::kGenerate);
inline constexpr Uses kInObjective = uses(ConfigUse::kObjective);
inline constexpr Uses kInServe = uses(ConfigUse::kServe);
inline constexpr Uses kLearning = kInTrain | kInSft;

}  // namespace mortise
