# The Python side of the environment `python`: the user's tools, or one object of the user's class for each episode.
#
# First the settings come, and a description or an error goes back; then a frame for each reset, step or close. Each
# reset and step has one answer. What it needs from plugins/shared/python_base.py stands above it in the program.
import typing

WHO, TABLE = "environment", "the table [rollout.multi_turn]"
NOT_TOOLS = ("reset", "get_reward", "close", "step")


# JSON schemas of tools, from type hints and docstrings, as chat templates take them.

BASIC = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def schema_of_union(kinds):
    parts = [schema_of_type(kind) for kind in kinds if kind is not type(None)]
    if len(parts) == 1:
        schema = parts[0]
    elif all(set(part) == {"type"} and isinstance(part["type"], str) for part in parts):
        schema = {"type": sorted(part["type"] for part in parts)}
    else:
        schema = {"anyOf": parts}
    if type(None) in kinds:
        schema["nullable"] = True
    return schema


def schema_of_literal(values):
    types = sorted({BASIC[type(value)] for value in values})
    return {"type": types[0] if len(types) == 1 else types, "enum": list(values)}


def schema_of_type(hint):
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any:
        return {}
    if origin is None:
        return {"type": BASIC.get(hint, "object")}
    if origin is typing.Union or type(hint).__name__ == "UnionType":
        return schema_of_union(inner)
    if origin is typing.Literal:
        return schema_of_literal(inner)
    if origin is list:
        return {"type": "array", "items": schema_of_type(inner[0])} if inner else {"type": "array"}
    if origin is tuple and inner and Ellipsis not in inner:
        return {"type": "array", "prefixItems": [schema_of_type(one) for one in inner]}
    schema = {"type": "object"}
    if origin is dict and len(inner) == 2:
        schema["additionalProperties"] = schema_of_type(inner[1])
    return schema


def sections_of(doc):
    """The description of a docstring in Google's style, the text of each argument, and that of the result."""
    parts = re.split(r"^[ \t]*(Args|Arguments|Returns|Raises|Example|Examples|Yields|Note|Notes):[ \t]*$", doc, flags=re.M)
    named = dict(zip(parts[1::2], parts[2::2]))
    arguments = {}
    block = inspect.cleandoc(named.get("Args", named.get("Arguments", "")))
    for match in re.finditer(r"^(\w+)[ \t]*(?:\([^)]*\))?:[ \t]*(.*(?:\n(?:[ \t]+.*|[ \t]*))*)", block, flags=re.M):
        arguments[match.group(1)] = " ".join(match.group(2).split())
    result = " ".join(named["Returns"].split()) if "Returns" in named else None
    return parts[0].strip(), arguments, result


def schema_of_tool(name, function, where):
    doc = inspect.getdoc(function)
    if not doc:
        raise Unusable("%s: '%s' has no docstring; the model reads it to know what the tool does" % (where, name))
    description, texts, result = sections_of(doc)
    hints = typing.get_type_hints(function)
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise Unusable("%s: '%s' takes %s; a tool's arguments have names" % (where, name, parameter))
        if parameter.name not in hints:
            raise Unusable("%s: the argument '%s' of '%s' has no type hint" % (where, parameter.name, name))
        if parameter.name not in texts:
            raise Unusable("%s: the docstring of '%s' says nothing of '%s'; add it below \"Args:\""
                           % (where, name, parameter.name))
        text = texts[parameter.name]
        schema = schema_of_type(hints[parameter.name])
        choices = re.search(r"\(choices:\s*(.*?)\)\s*$", text, flags=re.I | re.S)
        if choices:
            schema["enum"] = json.loads(choices.group(1))
            text = text[: choices.start()].strip()
        schema["description"] = text
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    own = {"name": name, "description": description, "parameters": parameters}
    if "return" in hints:
        own["return"] = schema_of_type(hints["return"])
        if result is not None:
            own["return"]["description"] = result
    return {"type": "function", "function": own}


def text_of(result):
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return str(result)


class Turns:
    def __init__(self, settings):
        self.modules, self.loop, self.games = {}, None, {}
        self.tools, self.schemas = {}, []
        for entry in settings["tools"]:
            self.add_tool(entry)
        self.make = self.is_text_game = None
        if settings["class"]:
            self.use_class(settings["class"], settings["kwargs"])

    def find(self, entry, what):
        path, _, name = entry.rpartition(":")
        if not path or not name:
            raise Unusable("%s: write it as \"FILE.py:%s\"" % (entry, what))
        path = os.path.abspath(path)
        if not os.path.isfile(path):
            raise Unusable("%s: there is no file %s" % (entry, path))
        try:
            module = self.modules[path] if path in self.modules else load(path)
        except BaseException as error:
            raise Unusable("importing %s failed: %s" % (path, describe(error, path)))
        self.modules[path] = module
        if not hasattr(module, name):
            raise Unusable("%s has no '%s'" % (path, name))
        return path, name, getattr(module, name)

    def add_tool(self, entry):
        path, name, function = self.find(entry, "FUNCTION")
        if not callable(function) or inspect.isclass(function):
            raise Unusable("'%s' in %s is not a function" % (name, path))
        if name in self.tools:
            raise Unusable("two tools have the name '%s'" % name)
        self.tools[name] = function
        self.schemas.append(schema_of_tool(name, function, path))

    def use_class(self, entry, kwargs):
        path, name, self.cls = self.find(entry, "CLASS")
        if not inspect.isclass(self.cls):
            raise Unusable("'%s' in %s is not a class" % (name, path))
        self.make = lambda: self.cls(**kwargs)
        self.is_text_game = hasattr(self.cls, "step")
        if self.is_text_game:
            return
        for method, function in inspect.getmembers(self.cls, inspect.isfunction):
            if method.startswith("_") or method in NOT_TOOLS:
                continue
            self.schemas.append(schema_of_tool(method, function.__get__(object()), path))
            self.tools[method] = method

    def ready(self):
        rewards = self.make is not None and (self.is_text_game or hasattr(self.cls, "get_reward"))
        return {"ready": True, "tools": self.schemas, "rewards": rewards, "version": "%d.%d.%d" % sys.version_info[:3]}

    def wait_for(self, result):
        if not inspect.isawaitable(result):
            return result
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(result)

    def reset(self, request):
        if self.make is None:
            return {}
        game = self.games[request["episode"]] = self.make()
        if not hasattr(game, "reset"):
            return {}
        row = dict(request["columns"])
        row.setdefault("prompt", request["messages"])
        row.setdefault("seed", request["seed"])
        names = inspect.signature(game.reset).parameters
        takes_all = any(p.kind == p.VAR_KEYWORD for p in names.values())
        text = self.wait_for(game.reset(**{k: v for k, v in row.items() if takes_all or k in names}))
        if isinstance(text, tuple):  # gymnasium: observation and information
            text = text[0]
        return {} if text is None else {"messages": [{"role": "user", "content": text_of(text)}]}

    def step(self, request):
        game = self.games.get(request["episode"])
        if self.is_text_game:
            return self.play(game, request)
        calls = [] if request["last"] else request["calls"]
        if not calls:
            answer = {"done": True}
            if hasattr(game, "get_reward"):
                answer["reward"] = self.number(self.wait_for(game.get_reward()))
            return answer
        messages, failed = [], 0
        for call in calls:
            content, is_good = self.call(game, call)
            failed += not is_good
            messages.append({"role": "tool", "name": call.get("name", "unknown"), "content": content})
        return {"messages": messages, "calls": len(calls), "failed": failed}

    def call(self, game, call):
        name = call.get("name", "")
        try:
            if "error" in call:
                raise ValueError(call["error"])
            if name not in self.tools:
                raise ValueError("there is no tool '%s'; there is %s" % (name, ", ".join(sorted(self.tools))))
            tool = self.tools[name]
            function = getattr(game, tool) if isinstance(tool, str) else tool
            return text_of(self.wait_for(function(**call["arguments"]))), True
        except (Exception, SystemExit) as error:  # the model sees it, and may try again
            return json.dumps({"error": "%s: %s" % (type(error).__name__, error)}, ensure_ascii=False), False

    def play(self, game, request):
        """step(text) of a text game: observation, or (observation, reward, done), or gymnasium's five values."""
        result = self.wait_for(game.step(request["text"]))
        if not isinstance(result, tuple):
            result = (result, None, False)
        if len(result) not in (3, 5):
            raise Unusable("step() returned %d values; return observation, reward, done" % len(result))
        text, reward = result[0], result[1]
        done = bool(result[2] or (len(result) == 5 and result[3]))
        answer = {"done": done or text is None}
        if reward is not None:
            answer["reward"] = self.number(reward)
        if not answer["done"]:
            answer["messages"] = [{"role": "user", "content": text_of(text)}]
        return answer

    def number(self, value):
        if value is None:
            return None
        value = float(value)
        if not math.isfinite(value):
            raise Unusable("the reward is %r" % value)
        return value

    def close(self, request):
        for episode in request["episodes"]:
            game = self.games.pop(episode, None)
            if hasattr(game, "close"):
                self.wait_for(game.close())


def answer(turns, request, wire):
    try:
        if request["do"] == "close":
            return turns.close(request)
        given = turns.reset(request) if request["do"] == "reset" else turns.step(request)
    except Unusable as error:
        given = {"error": str(error)}
    except BaseException as error:  # exit() in an environment is an error of its episode
        given = {"error": describe(error, next(iter(turns.modules), ""))}
    wire.write(given)


serve(Turns, answer)
