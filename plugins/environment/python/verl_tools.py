# Tools and interactions that were written for verl: classes for its BaseTool and BaseInteraction, and functions under
# its @function_tool. It stands between python_base.py and python_turns_driver.py in the program.
#
# As in verl's tool_agent loop, all rows share one object of a class. Each call makes an instance (create), runs it
# (execute) and releases it. Interactions answer the turns that call no tool. If this Python has no verl, the modules
# that such code imports are made here, with what verl's have; the reward functions of verl are not among them.
import importlib
import types

STAND_INS = ("verl.tools.base_tool", "verl.tools.schemas", "verl.tools.function_tool", "verl.tools.registry",
             "verl.interactions.base", "verl.utils.rollout_trace")
NEEDED = object()


class Record:
    """Fields as in verl's pydantic models. model_dump leaves out what was not given, if asked to."""

    FIELDS = {}  # the value of a field that is not given, or NEEDED
    PARTS = {}  # fields that are records themselves
    TABLES = {}  # fields that are tables of records
    KEEPS_OTHERS = False

    def __init__(self, **given):
        self._given = [name for name in self.FIELDS if name in given]
        if self.KEEPS_OTHERS:
            self._given += [name for name in given if name not in self.FIELDS]
        for name, fallback in self.FIELDS.items():
            if name not in given and fallback is NEEDED:
                raise ValueError("%s needs '%s'" % (type(self).__name__, name))
            setattr(self, name, fallback() if callable(fallback) and name not in given else given.get(name, fallback))
        for name in self._given:
            setattr(self, name, self._part(name, given[name]))

    def _part(self, name, value):
        if name in self.PARTS:
            return self.PARTS[name].model_validate(value)
        if name in self.TABLES:
            return {key: self.TABLES[name].model_validate(one) for key, one in value.items()}
        return value

    @classmethod
    def model_validate(cls, value):
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise ValueError("%s is made of a table, not of %s" % (cls.__name__, shown(value)))
        return cls(**value)

    def model_dump(self, exclude_unset=False, exclude_none=False, **_):
        names = list(self.FIELDS) + [name for name in self._given if name not in self.FIELDS]
        dumped = {}
        for name in names:
            value = getattr(self, name)
            if (exclude_unset and name not in self._given) or (exclude_none and value is None):
                continue
            dump = lambda one: one.model_dump(exclude_unset, exclude_none) if isinstance(one, Record) else one
            dumped[name] = {k: dump(v) for k, v in value.items()} if name in self.TABLES else dump(value)
        return dumped


class OpenAIFunctionPropertySchema(Record):
    FIELDS = {"type": NEEDED, "description": None, "enum": None}
    KEEPS_OTHERS = True


class OpenAIFunctionParametersSchema(Record):
    FIELDS = {"type": NEEDED, "properties": NEEDED, "required": list}
    TABLES = {"properties": OpenAIFunctionPropertySchema}
    KEEPS_OTHERS = True


class OpenAIFunctionSchema(Record):
    FIELDS = {"name": NEEDED, "description": NEEDED,
              "parameters": lambda: OpenAIFunctionParametersSchema(type="object", properties={}, required=[]),
              "strict": False}
    PARTS = {"parameters": OpenAIFunctionParametersSchema}


class OpenAIFunctionToolSchema(Record):
    FIELDS = {"type": NEEDED, "function": NEEDED}
    PARTS = {"function": OpenAIFunctionSchema}


class ToolResponse(Record):
    FIELDS = {"text": None, "image": None, "video": None}

    def is_empty(self):
        return not self.text and not self.image and not self.video

    def is_text_only(self):
        return self.text and not self.image and not self.video


class BaseTool:
    def __init__(self, config, tool_schema):
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        assert self.tool_schema is not None, "Tool schema is not set!"
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self):
        return getattr(self, "tool_schema", None)

    async def create(self, instance_id=None, **kwargs):
        return instance_id or os.urandom(16).hex(), ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text="Updated the tool state."), 0.0, {}

    async def calc_reward(self, instance_id, **kwargs):
        return 0.0

    async def release(self, instance_id, **kwargs):
        pass


class BaseInteraction:
    def __init__(self, config):
        self.config = config
        self.name = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id=None, **kwargs):
        return instance_id or os.urandom(16).hex()

    async def generate_response(self, instance_id, messages, **kwargs):
        raise NotImplementedError("generate_response")

    async def calculate_score(self):
        return 0.0

    async def finalize_interaction(self):
        pass


FUNCTION_TOOLS = {}  # by name: the function, and its schema if it brings one


def function_tool(name=None, *, schema=None):
    """verl's decorator: @function_tool, @function_tool("name") or @function_tool("name", schema=...)."""

    def add(function, own_name=None):
        FUNCTION_TOOLS[own_name or function.__name__] = (function, schema)
        return function

    if callable(name):
        return add(name)
    return lambda function: add(function, name)


def register_tool(_name):
    return lambda cls: cls


def stand_in_for_verl():
    """Makes the modules of STAND_INS if there is no verl. Returns whether it did."""
    sys.path.insert(0, os.getcwd())  # as `python3 -m verl.trainer.main_ppo` has it
    try:
        if importlib.util.find_spec("verl") is not None:
            return False
    except (ImportError, ValueError):
        pass
    names = ("verl", "verl.tools", "verl.interactions", "verl.utils") + STAND_INS
    for name in names:
        sys.modules[name] = module = types.ModuleType(name)
        if name not in STAND_INS:
            module.__path__ = []  # a package
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    schemas = (OpenAIFunctionPropertySchema, OpenAIFunctionParametersSchema, OpenAIFunctionSchema,
               OpenAIFunctionToolSchema, ToolResponse)
    for module, things in (("verl.tools.schemas", schemas), ("verl.tools.base_tool", (BaseTool,) + schemas),
                           ("verl.tools.function_tool", (function_tool, ToolResponse)),
                           ("verl.tools.registry", (register_tool,)), ("verl.interactions.base", (BaseInteraction,))):
        for thing in things:
            setattr(sys.modules[module], thing.__name__, thing)
    trace = sys.modules["verl.utils.rollout_trace"]
    trace.rollout_trace_op = lambda function: function
    return True


class VerlAnswer:
    def __init__(self, text, reward, is_good=True):
        self.text, self.reward, self.is_good = text, reward, is_good


class AgentData:
    """What verl's tools may ask of their row. Token ids, log-probs and images are empty here."""

    def __init__(self, messages, request_id, tools_kwargs, interaction_kwargs):
        self.messages, self.request_id, self.tools_kwargs = messages, request_id, tools_kwargs
        self.interaction, self.interaction_kwargs = None, interaction_kwargs
        self.image_data = self.video_data = self.routed_experts = None
        self.metrics, self.extra_fields = {}, {}
        self.prompt_ids, self.response_ids, self.response_mask, self.response_logprobs = [], [], [], []
        self.turn_scores, self.tool_rewards, self.tool_calls = [], [], []
        self.user_turns = self.assistant_turns = 0

    def note_turn(self, text):
        self.assistant_turns += 1
        if self.interaction is not None:  # verl keeps the model's turns for interactions alone
            self.messages.append({"role": "assistant", "content": text})

    def take(self, answers):
        """The answers to the calls of a turn, in their order. Their reward is that of the turn; None: they have none."""
        rewards = [answer.reward for answer in answers if answer.reward is not None]
        self.tool_rewards += rewards
        self.messages += [{"role": "tool", "content": answer.text} for answer in answers]
        self.user_turns += 1
        return sum(rewards) if rewards else None


class VerlTools:
    """The tools and interactions of a run, in verl's form."""

    def __init__(self, settings):
        self.stands_in = stand_in_for_verl()
        self.objects, self.schemas, self.interactions = {}, {}, {}
        for entry in settings["verl_tools"]:
            self.add_tool(entry)
        if settings["verl_functions"]:
            self.add_functions(settings["verl_functions"])
        for entry in settings["verl_interactions"]:
            self.add_interaction(entry)

    def class_of(self, dotted):
        module, _, name = dotted.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except BaseException as error:
            hint = ""
            if isinstance(error, ModuleNotFoundError):
                hint = ("; start the run in the folder that has the module, or name a Python that has it with "
                        "rollout.multi_turn.params.python")
                if self.stands_in and (error.name or "").partition(".")[0] == "verl":
                    hint = ("; this Python has no verl, and Mortise stands in for %s alone. Name a Python that has it with "
                            "rollout.multi_turn.params.python" % ", ".join(STAND_INS))
            raise Unusable("the class %s cannot be imported: %s%s" % (dotted, describe(error, ""), hint))

    def made(self, dotted, make):
        try:
            return make()
        except BaseException as error:
            raise Unusable("%s cannot be made: %s" % (dotted, describe(error, "")))

    def add(self, name, thing, schema):
        if name in self.objects:
            raise Unusable("two tools have the name '%s'" % name)
        self.objects[name], self.schemas[name] = thing, schema

    def add_tool(self, entry):
        dotted = entry["class_name"]
        cls = self.class_of(dotted)

        def make():
            given = entry.get("tool_schema")
            schemas = importlib.import_module("verl.tools.schemas")
            schema = None if given is None else schemas.OpenAIFunctionToolSchema.model_validate(given)
            tool = cls(config=entry["config"], tool_schema=schema)
            return tool, tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)

        tool, schema = self.made(dotted, make)
        self.add(tool.name, tool, schema)

    def add_functions(self, path):
        path = os.path.abspath(path)
        registry = importlib.import_module("verl.tools.function_tool")
        before = set(getattr(registry, "FUNCTION_TOOL_REGISTRY", FUNCTION_TOOLS))
        self.made(path, lambda: load(path))
        found = getattr(registry, "FUNCTION_TOOL_REGISTRY", FUNCTION_TOOLS)
        for name in sorted(set(found) - before):
            if self.stands_in:
                function, given = found[name]
                made = self.made(name, lambda: schema_of_tool(name, function, path) if given is None else
                                 OpenAIFunctionToolSchema.model_validate(given).model_dump(True, True))
            else:
                function, made = found[name].fn, found[name].tool_schema.model_dump(exclude_unset=True, exclude_none=True)
            self.add(name, function, made)
        if not set(found) - before:
            raise Unusable("%s has no function under @function_tool" % path)

    def add_interaction(self, entry):
        name, dotted = entry["name"], entry["class_name"]
        cls = self.class_of(dotted)
        self.interactions[name] = self.made(dotted, lambda: cls(config=dict(entry["config"], name=name)))

    # One row.

    async def begin(self, request):
        info = request["columns"].get("extra_info") or {}
        if not isinstance(info, dict):
            raise Unusable("the column extra_info holds %s; verl's tools read a table from it" % shown(info))
        selection = info.get("tool_selection")
        if selection and set(selection) & set(self.objects) != set(self.objects):
            raise Unusable("extra_info.tool_selection chooses some of the tools; here all rows have the same tools")
        data = AgentData(list(request["messages"]), "%016x%016x" % (request["seed"], request["episode"]),
                         info.get("tools_kwargs") or {}, info.get("interaction_kwargs") or {})
        if self.interactions:
            name = data.interaction_kwargs.get("name")
            if name not in self.interactions:
                raise Unusable("extra_info.interaction_kwargs.name is %s; there is %s"
                               % (shown(name), ", ".join(sorted(self.interactions))))
            data.interaction = self.interactions[name]
            await data.interaction.start_interaction(data.request_id, **data.interaction_kwargs)
        return data

    async def call(self, name, arguments, data):
        """One call of a tool: the answer and its reward."""
        tool, instance = self.objects[name], None
        try:
            if inspect.isroutine(tool):
                result = tool(**arguments)
                result = await result if inspect.isawaitable(result) else result
                return self.function_answer(result)
            kwargs = data.tools_kwargs.get(name) or {}
            try:
                instance, _ = await tool.create(create_kwargs=kwargs.get("create_kwargs") or {})
                response, reward, _ = await tool.execute(instance, arguments, agent_data=data)
            finally:
                if instance is not None:
                    await tool.release(instance)
            return self.answer(response, reward)
        except Exception as error:
            return VerlAnswer("Error executing tool '%s': %s" % (name, error), 0.0, is_good=False)

    def answer(self, response, reward):
        if getattr(response, "image", None) or getattr(response, "video", None):
            raise ValueError("the tool answers with images or video, which Mortise's models cannot read")
        text = response if isinstance(response, str) else getattr(response, "text", None)
        if text is not None and not isinstance(text, str):
            raise TypeError("the tool answers with %s, not with a text" % shown(text))
        return VerlAnswer(text or "", None if reward is None else float(reward))

    def function_answer(self, result):
        """As verl reads what a function under @function_tool returns."""
        if not isinstance(result, tuple):
            result = (result,)
        if not 1 <= len(result) <= 3:
            raise TypeError("a tuple of %d values; return (response,), (response, reward) or (response, reward, "
                            "metrics)" % len(result))
        response = result[0]
        if isinstance(response, dict):
            response = json.dumps(response, ensure_ascii=False)
        if not isinstance(response, str) and not hasattr(response, "text"):
            response = str(response)
        return self.answer(response, 0.0 if len(result) < 2 or result[1] is None else result[1])

    async def interact(self, data):
        done, text, score, _ = await data.interaction.generate_response(
            data.request_id, data.messages, **data.interaction_kwargs)
        data.user_turns += 1
        data.messages.append({"role": "user", "content": text})
        if score is not None:
            data.turn_scores.append(float(score))
        return bool(done), text, score

    async def finalize(self, data):
        if data.interaction is not None and hasattr(data.interaction, "finalize_interaction"):
            takes = inspect.signature(data.interaction.finalize_interaction).parameters
            await data.interaction.finalize_interaction(*([data.request_id] if takes else []))
