# Tools and interactions that were written for verl, in the environment `python` without verl.
# verl_tools_check.py SOURCE_DIR. Needs the standard library alone.
import json
import os
import sys
import tempfile

CLASSES = '''
from verl.interactions.base import BaseInteraction
from verl.tools.base_tool import BaseTool
from verl.tools.registry import register_tool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op

log = []


@register_tool("judge")
class JudgeTool(BaseTool):
    """Compares an answer with the row's, as verl's example for GSM8K does."""

    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.rows = {}

    async def create(self, instance_id=None, **kwargs):
        instance_id, response = await super().create(instance_id)
        self.rows[instance_id] = kwargs["create_kwargs"].get("ground_truth")
        log.append("create")
        return instance_id, response

    @rollout_trace_op
    async def execute(self, instance_id, parameters, **kwargs):
        data = kwargs["agent_data"]
        data.extra_fields["calls"] = data.extra_fields.get("calls", 0) + 1
        log.append("execute")
        if parameters["answer"] == "boom":
            raise ValueError("no such answer")
        if parameters["answer"] == "bytes":
            return ToolResponse(text=b"no text"), 0.0, {}
        right = parameters["answer"] == self.rows[instance_id]
        return ToolResponse(text="%s %d" % (right, data.extra_fields["calls"])), 1.0 if right else self.config["penalty"], {}

    async def release(self, instance_id, **kwargs):
        del self.rows[instance_id]
        log.append("release")


class OwnSchema(BaseTool):
    def get_openai_tool_schema(self):
        return OpenAIFunctionToolSchema(type="function", function={"name": "own", "description": "Brings its schema"})


class HintInteraction(BaseInteraction):
    def __init__(self, config):
        super().__init__(config)
        self.rows = {}

    async def start_interaction(self, instance_id=None, ground_truth=None, **kwargs):
        self.rows[instance_id] = ground_truth
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        assert messages[-1]["role"] == "assistant" and kwargs["name"] == "hint"
        right = messages[-1]["content"] == self.rows[instance_id]
        return right, "right" if right else "try again", float(right), {}

    async def finalize_interaction(self, instance_id, **kwargs):
        del self.rows[instance_id]
'''

FUNCTIONS = '''
from verl.tools.function_tool import function_tool


@function_tool
def plain(a: int) -> str:
    """Says a number.

    Args:
        a: a number
    """
    return {"a": a}


@function_tool("scored")
async def other(a: int):
    """Gives a reward.

    Args:
        a: a number
    """
    return "seen", a / 2, {"metric": 1}
'''

# Keys in another order, and ones that verl's models drop or keep.
SCHEMA = {
    "function": {
        "parameters": {
            "properties": {"answer": {"description": "the answer", "type": "string", "maxLength": 9}},
            "required": ["answer"], "type": "object", "additionalProperties": False,
        },
        "name": "judge", "description": "Judges", "unknown": 1,
    },
    "type": "function",
}
KEPT = ('{"type": "function", "function": {"name": "judge", "description": "Judges", "parameters": {"type": "object", '
        '"properties": {"answer": {"type": "string", "description": "the answer", "maxLength": 9}}, '
        '"required": ["answer"], "additionalProperties": false}}}')


def program(source):
    driver = {"__name__": "driver"}
    text = "\n".join(open(os.path.join(source, "plugins", name)).read() for name in (
        "shared/python_base.py", "environment/python/verl_tools.py", "environment/python/python_turns_driver.py"))
    exec(compile(text.replace("\nserve(Turns, answer)", ""), "<string>", "exec"), driver)
    return driver


def row(episode, **info):
    return {"do": "reset", "episode": episode, "seed": 7, "columns": {"extra_info": info},
            "messages": [{"role": "user", "content": "?"}]}


def turn(episode, text="", calls=(), last=False):
    return {"do": "step", "episode": episode, "text": text, "last": last,
            "calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def contents(answer):
    return [message["content"] for message in answer["messages"]]


def check_tools(driver):
    turns = driver["Turns"]({"tools": [], "class": "", "kwargs": {}, "verl_functions": "functions.py",
                             "verl_interactions": [],
                             "verl_tools": [{"class_name": "pkg.classes.JudgeTool", "config": {"type": "native", "penalty": -0.05},
                                             "tool_schema": SCHEMA},
                                            {"class_name": "pkg.classes.OwnSchema", "config": {"type": "native"}}]})
    ready = turns.ready()
    assert json.dumps(ready["tools"][0]) == KEPT, json.dumps(ready["tools"][0])
    assert [tool["function"]["name"] for tool in ready["tools"]] == ["judge", "own", "plain", "scored"] and ready["rewards"]
    kwargs = {"judge": {"create_kwargs": {"ground_truth": "4"}}}
    assert turns.reset(row(0, tools_kwargs=kwargs)) == {} and turns.reset(row(1)) == {}
    log = sys.modules["pkg.classes"].log
    answer = turns.step(turn(0, calls=[("judge", {"answer": "3"})]))
    assert contents(answer) == ["False 1"] and answer["reward"] == -0.05 and answer["failed"] == 0, answer
    assert log == ["create", "execute", "release"], log
    answer = turns.step(turn(0, calls=[("judge", {"answer": "4"}), ("scored", {"a": 3}), ("plain", {"a": 5})]))
    assert contents(answer) == ["True 2", "seen", '{"a": 5}'] and answer["reward"] == 2.5, answer
    answer = turns.step(turn(0, calls=[("judge", {"answer": "boom"}), ("lost", {})]))
    assert contents(answer)[0] == "Error executing tool 'judge': no such answer", answer
    assert "there is no tool 'lost'" in contents(answer)[1] and answer["failed"] == 2 and answer["reward"] == 0, answer
    assert log[-1] == "release" and turns.games[0].tool_rewards == [-0.05, 1.0, 1.5, 0.0, 0.0, 0.0]
    answer = turns.step(turn(0, calls=[("judge", {"answer": "bytes"})]))
    assert contents(answer) == ["Error executing tool 'judge': the tool answers with b'no text', not with a text"], answer
    assert turns.games[1].extra_fields == {}, "rows share the tool, and nothing else"
    assert turns.step(turn(1, "no call")) == {"done": True}
    assert turns.step(turn(1, calls=[("plain", {"a": 1})], last=True)) == {"done": True}
    turns.close({"episodes": [0, 1, 5]})
    assert not turns.games
    for request, what in ((row(2, tool_selection=["judge"]), "tool_selection"),
                          (dict(row(2), columns={"extra_info": '{"index": 1}'}), "extra_info holds '{")):
        try:
            turns.reset(request)
            raise AssertionError(what + " is not known here")
        except driver["Unusable"] as error:
            assert what in str(error), str(error)


def check_interactions(driver):
    turns = driver["Turns"]({"tools": [], "class": "", "kwargs": {}, "verl_tools": [], "verl_functions": "",
                             "verl_interactions": [{"name": "hint", "class_name": "pkg.classes.HintInteraction", "config": {}}]})
    assert turns.ready()["tools"] == [] and turns.ready()["rewards"]
    turns.reset(row(0, interaction_kwargs={"name": "hint", "ground_truth": "4"}))
    answer = turns.step(turn(0, "3"))
    assert answer == {"done": False, "reward": 0.0, "messages": [{"role": "user", "content": "try again"}]}, answer
    assert turns.step(turn(0, "4")) == {"done": True, "reward": 1.0}
    assert [m["role"] for m in turns.games[0].messages] == ["user", "assistant", "user", "assistant", "user"]
    turns.close({"episodes": [0]})
    assert turns.verl.interactions["hint"].rows == {}
    try:
        turns.reset(row(1))
        raise AssertionError("a row must name its interaction")
    except driver["Unusable"] as error:
        assert "there is hint" in str(error)


def check_refusals(driver):
    for tool, what in (("pkg.lost.Tool", "No module named 'pkg.lost'"), ("pkg.lost.Tool", "start the run in the folder"),
                       ("verl.tools.gsm8k_tool.Gsm8kTool", "this Python has no verl"),
                       ("pkg.classes.BaseTool", "Tool schema is not set!")):
        try:
            driver["VerlTools"]({"verl_tools": [{"class_name": tool, "config": {}}], "verl_functions": "", "verl_interactions": []})
            raise AssertionError(tool)
        except driver["Unusable"] as error:
            assert what in str(error), str(error)


def main():
    source = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.mkdir("pkg")
        for name, text in (("pkg/classes.py", CLASSES), ("functions.py", FUNCTIONS)):
            with open(name, "w") as out:
                out.write(text)
        sys.path = [path for path in sys.path if path not in ("", source)]
        driver = program(source)
        check_tools(driver)
        check_interactions(driver)
        check_refusals(driver)
        os.chdir("/")


main()
