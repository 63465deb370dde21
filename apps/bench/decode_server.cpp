// See decode_server.h.
#include "decode_server.h"

#include <fmt/core.h>

#include <chrono>
#include <iostream>
#include <map>
#include <optional>
#include <string>

#include "foundation/formats/json.h"
#include "generate/engine.h"
#include "roofline.h"

namespace mortise {
namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Matrices and the keys and values of `rows` rows of `context` tokens; a head that is tied is read all the same.
std::pair<double, double> least_work(const ModelConfig& c, double rows, double context, double bytes_a_weight) {
  const auto hidden = static_cast<double>(c.hidden_size);
  const double layer = hidden * static_cast<double>(c.qkv_size() + c.q_size() + 3 * c.intermediate_size);
  const double weights = static_cast<double>(c.num_layers) * layer + hidden * static_cast<double>(c.vocab_size);
  const double kept = rows * context * static_cast<double>(c.num_layers);
  const double bytes = weights * bytes_a_weight + kept * 2.0 * static_cast<double>(c.kv_size()) * sizeof(float);
  return {bytes, 2.0 * rows * weights + 4.0 * kept * static_cast<double>(c.q_size())};
}

class Server {
 public:
  explicit Server(int threads) : threads_(threads) {}

  Result<Json> answer(const Json& request) {
    const auto what = request.at("do").get<std::string>();
    if (what == "load") return load(request);
    if (what == "run") return run(request);
    if (what != "roofline") return Error{ErrorKind::kConfig, fmt::format("there is no '{}'", what), "bench_decode", ""};
    const Roofline limits = measure_roofline(threads_);
    return Json{{"read_bytes_per_s", limits.read_bytes_per_s}, {"flops_per_s", limits.flops_per_s}};
  }

 private:
  Result<Json> load(const Json& request) {
    engines_.clear();
    model_.emplace(TRY(Model::load(default_env(), request.at("folder").get<std::string>())));
    const GenerateEngine* const engine = TRY(engine_of("float32"));
    return Json{{"kernels", engine->path_name()}};
  }

  Result<GenerateEngine*> engine_of(const std::string& dtype) {
    if (!model_) return Error{ErrorKind::kConfig, "no model is loaded", "bench_decode", "load one"};
    std::unique_ptr<GenerateEngine>& engine = engines_[dtype];
    if (engine == nullptr) {
      EngineOptions options;
      options.num_threads = threads_;
      options.prefix_cache_bytes = 0;  // every call computes its prompts
      if (dtype == "bfloat16") options.weights = WeightFormat::kBfloat16;
      engine = TRY(GenerateEngine::create(*model_, options));
    }
    return engine.get();
  }

  Result<Json> run(const Json& request) {
    const auto dtype = request.at("dtype").get<std::string>();
    GenerateEngine& engine = *TRY(engine_of(dtype));
    const auto prompts = request.at("prompts").get<std::vector<std::vector<int64_t>>>();
    SamplingParams sampling;
    sampling.max_new_tokens = request.at("new_tokens").get<int64_t>();
    sampling.temperature = request.at("temperature").get<double>();
    sampling.ignore_eos = true;
    sampling.stop_ids = {model_->config().vocab_size - 1};
    std::vector<GenerateRequest> requests;
    for (const std::vector<int64_t>& prompt : prompts) {
      const auto row = static_cast<int64_t>(requests.size());
      requests.push_back({row, prompt, 1, row, 1, request.at("step").get<int64_t>(), sampling});
    }
    std::vector<std::vector<int64_t>> ids(prompts.size());
    const auto keep = [&](const GeneratedSequence& sequence) {
      ids[static_cast<size_t>(sequence.request_id)] = sequence.ids;
      return true;
    };
    std::vector<double> steps;
    const double start = seconds();
    TRY(engine.submit(requests));
    for (uint64_t left = 1; left > 0;) {
      const double begin = seconds();
      left = TRY(engine.poll(keep, std::chrono::nanoseconds(1)));  // one step
      steps.push_back(seconds() - begin);
    }
    const double all = seconds() - start;
    const double context = static_cast<double>(prompts[0].size()) + static_cast<double>(sampling.max_new_tokens) / 2.0;
    const auto [bytes, flops] =
        least_work(model_->config(), static_cast<double>(prompts.size()), context, dtype == "bfloat16" ? 2.0 : 4.0);
    return Json{{"seconds", all}, {"step_seconds", steps}, {"ids", ids}, {"step_bytes", bytes}, {"step_flops", flops}};
  }

  int threads_;
  std::optional<Model> model_;
  std::map<std::string, std::unique_ptr<GenerateEngine>> engines_;
};

}  // namespace

int serve_decoding(int threads) {
  Server server(threads);
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = parse_json(line, "request");
    const auto answer = request.ok() ? server.answer(*request) : Result<Json>(request.error());
    if (!answer.ok()) {
      std::cerr << answer.error().to_string() << "\n";
      return 1;
    }
    std::cout << dump_json(*answer) << std::endl;
  }
  return 0;
}

}  // namespace mortise
