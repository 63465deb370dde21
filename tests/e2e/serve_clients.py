# serve_clients.py URL: other frameworks' clients against `mortise serve`, unchanged: TRL's vLLM client, and the openai
# wheel if it is there. Prints what was tested; any other answer than theirs is an error.
import importlib.util
import math
import sys

if importlib.util.find_spec("requests") is None:
    sys.exit(77)  # TRL's client needs it; the environment is older than tests/oracles.lock
from trl.generation import vllm_client

url = sys.argv[1]
vllm_client.is_vllm_available = lambda *_: True  # it needs vLLM itself only to send weights over NCCL
client = vllm_client.VLLMClient(base_url=url, connection_timeout=300)
prompt = [5, 6, 7]
out = client.generate([prompt, [8, 9]], n=3, max_tokens=4, temperature=0.7, top_k=5, logprobs=2,
                      generation_kwargs={"seed": 7, "ignore_eos": True})
assert out["prompt_ids"] == [prompt, [8, 9]], out["prompt_ids"]
assert [len(ids) for ids in out["completion_ids"]] == [4] * 6, out["completion_ids"]
for ids, log_probs, tokens in zip(out["completion_ids"], out["logprobs"], out["logprob_token_ids"], strict=True):
    for id, values, names in zip(ids, log_probs, tokens, strict=True):
        assert id in names and values == sorted(values, reverse=True) and all(v <= 1e-4 for v in values)
again = client.generate([prompt, [8, 9]], n=3, max_tokens=4, temperature=0.7, top_k=5,
                        generation_kwargs={"seed": 7, "ignore_eos": True})
assert again["completion_ids"] == out["completion_ids"], "the seed decides"
client.reset_prefix_cache()
print("TRL's client: generate")

try:
    import openai
except ImportError:
    sys.exit(0)
api = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
model = api.models.list().data[0].id
whole = api.completions.create(model=model, prompt="12", max_tokens=5, seed=3, logprobs=1, temperature=1.0)
assert len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens
pieces = api.completions.create(model=model, prompt="12", max_tokens=5, seed=3, stream=True, temperature=1.0)
assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
greedy = api.completions.create(model=model, prompt="12", max_tokens=1, temperature=0, logprobs=1).choices[0].logprobs
assert math.isclose(greedy.token_logprobs[0], max(greedy.top_logprobs[0].values()))
try:
    api.completions.create(model=model, prompt="12", logit_bias={"5": 1})
    raise AssertionError("logit_bias was taken")
except openai.BadRequestError as error:
    assert "logit_bias" in str(error)
print("openai: models, completions, streams, errors")
