// The engine's generator as the model of a server (core/serve/engine_port.h).
// Thread rule: one thread, that of ServeLoop::run.
#pragma once

#include <memory>

#include "foundation/base/env.h"
#include "generate/engine.h"
#include "model/model.h"
#include "serve/engine_port.h"

namespace mortise {

class GeneratorModel final : public ServedModel {
 public:
  // Borrows the environment and the model, whose weights load_weights replaces.
  static Result<std::unique_ptr<GeneratorModel>> create(Env& env, Model& model, const EngineOptions& options,
                                                        std::vector<int64_t> stop_ids);

  [[nodiscard]] const ServedModelInfo& info() const override { return info_; }
  Result<> submit(int64_t id, const ServedRequest& request) override;
  Result<uint64_t> step(const Take& take) override;
  void visit_running(const Take& take) const override;
  void abort(int64_t id) override { engine_->abort(id); }
  Result<> load_weights(const std::string& folder) override;
  Result<> set_version(int64_t version) override { return engine_->set_version(version); }
  void free_caches() override { engine_->free_caches(); }
  [[nodiscard]] std::string_view path_name() const { return engine_->path_name(); }

 private:
  GeneratorModel(Env& env, Model& model) : env_(&env), model_(&model) {}
  Env* env_;
  Model* model_;
  std::unique_ptr<GenerateEngine> engine_;
  ServedModelInfo info_;
};

}  // namespace mortise
