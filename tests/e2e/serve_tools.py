# serve_tools.py URL PROMPT: the openai wheel gets the calls of a served model that calls the tool mul, whole and as a
# stream, and sends them back. Exits with 77 if the wheel is not there.
import json
import sys

try:
    import openai
except ImportError:
    sys.exit(77)
url, prompt = sys.argv[1:]
api = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
model = api.models.list().data[0].id
number = {"type": "integer"}
tools = [{"type": "function", "function": {"name": "mul", "description": "Multiplies", "parameters": {
    "type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}}}]
ask = {"model": model, "messages": [{"role": "user", "content": prompt}], "tools": tools, "max_tokens": 24,
       "temperature": 1.0}

called = None
for seed in range(200):  # the model calls the tool in some of its answers
    answer = api.chat.completions.create(seed=seed, **ask).choices[0]
    if answer.finish_reason == "tool_calls":
        called = seed, answer.message
        break
    assert not answer.message.tool_calls, answer
assert called, "none of 200 answers calls the tool"
seed, message = called
call = message.tool_calls[0]
assert call.function.name == "mul" and set(json.loads(call.function.arguments)) <= {"a", "b"}, call
assert message.content is None, message

pieces = list(api.chat.completions.create(seed=seed, stream=True, **ask))
streamed = [c for piece in pieces for choice in piece.choices for c in choice.delta.tool_calls or []]
assert [(c.index, c.function.name, c.function.arguments) for c in streamed] == [
    (i, c.function.name, c.function.arguments) for i, c in enumerate(message.tool_calls)], streamed
assert pieces[-1].choices[0].finish_reason == "tool_calls"
assert not "".join(piece.choices[0].delta.content or "" for piece in pieces), "a call is no text"

plain = api.chat.completions.create(seed=seed, tool_choice="none", **ask).choices[0]
assert not plain.message.tool_calls and "mul" in plain.message.content, plain

history = ask["messages"] + [message.model_dump(exclude_none=True),
                             {"role": "tool", "tool_call_id": call.id, "content": "42"}]
api.chat.completions.create(**dict(ask, messages=history))
print("openai: calls, streamed calls, answers to calls")
