// A model folder behind the endpoints of mortise serve: weights, engine, loop and service.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "config/run_config.h"
#include "serve/service.h"
#include "serve/ui/model_slots.h"
#include "served_model.h"
#include "train/run/policy_folder.h"

namespace mortise {

// How answers to chats tell calls of tools from text; none: they do not.
using ToolCallParser = std::optional<ToolFormat>;

class ServedFolder {
 public:
  // The folder is model.path of the config. `name`: what clients call the model. Without a key everyone is answered.
  // Without a parser, the chat template tells which it is.
  static Result<std::unique_ptr<ServedFolder>> load(Env& env, const RunConfig& config, const ComputeDevice& device,
                                                    const std::string& name, const std::string& api_key,
                                                    std::optional<ToolCallParser> parser = {});
  ServedFolder(const ServedFolder&) = delete;
  ServedFolder& operator=(const ServedFolder&) = delete;
  ~ServedFolder() = default;

  ServeLoop& loop() { return *loop_; }
  ServeService& service() { return *service_; }

 private:
  explicit ServedFolder(Model model) : model_(std::move(model)) {}

  Model model_;
  std::optional<PolicyFolder> folder_;  // its tokenizer finds stop texts for the engine
  std::unique_ptr<GeneratorModel> generator_;
  std::optional<ServeLoop> loop_;
  std::optional<ServeService> service_;
};

// One of a playground, on a thread of its own.
class PlaygroundModel final : public LoadedModel {
 public:
  explicit PlaygroundModel(std::unique_ptr<ServedFolder> folder)
      : folder_(std::move(folder)), thread_([this] { folder_->loop().run(); }) {}
  PlaygroundModel(const PlaygroundModel&) = delete;
  PlaygroundModel& operator=(const PlaygroundModel&) = delete;
  ~PlaygroundModel() override {
    folder_->loop().stop();
    thread_.join();
  }
  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    folder_->service().handle(std::move(request), reply);
  }

 private:
  std::unique_ptr<ServedFolder> folder_;
  std::thread thread_;
};

}  // namespace mortise
