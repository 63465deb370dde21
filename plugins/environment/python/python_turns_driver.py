# The Python side of the environment `python`: the user's tools, or one object of the user's class for each episode.
#
# First the settings come, and a description or an error goes back; then a frame for each reset, step or close. Each
# reset and step has one answer. plugins/shared/python_base.py and verl_tools.py stand above it in the program.
import shlex
import subprocess
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
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise Unusable("%s: the type hints of '%s' cannot be read: %s: %s" % (where, name, type(error).__name__, error))
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


def own_schema(name, given, where):
    """The schema that a function or a server brings along: OpenAI's form, or MCP's with inputSchema."""
    own = given.get("function", given)
    parameters = own.get("parameters", own.get("inputSchema", {"type": "object", "properties": {}}))
    if not isinstance(parameters, dict) or not own.get("description"):
        raise Unusable("%s: the schema of '%s' needs a description, and parameters (or inputSchema) as an object" % (where, name))
    return {"type": "function", "function": {"name": name, "description": own["description"], "parameters": parameters}}


class McpServer:
    """Tools of a program that speaks the Model Context Protocol on its standard input and output: JSON-RPC, a line each."""

    PROTOCOL = "2025-06-18"

    def __init__(self, command):
        self.command, self.last_id, self.answers = command, 0, {}
        try:
            self.process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except (OSError, ValueError) as error:
            raise self.unusable("cannot be started: %s" % error)
        self.result_of(self.ask("initialize", {"protocolVersion": self.PROTOCOL, "capabilities": {},
                                               "clientInfo": {"name": "mortise", "version": "1"}}))
        self.send({"method": "notifications/initialized"})

    def tools(self):
        found, cursor, cursors = [], None, []
        while not cursors or cursor is not None:
            if cursor in cursors:
                raise self.unusable("gives a page of its tools twice, at the cursor %s" % shown(cursor))
            cursors.append(cursor)
            page = self.result_of(self.ask("tools/list", {} if cursor is None else {"cursor": cursor}))
            tools = page.get("tools")
            if not isinstance(tools, list) or not all(isinstance(t, dict) and isinstance(t.get("name"), str) for t in tools):
                raise self.unusable("lists no tools as MCP asks: " + shown(page))
            found += tools
            cursor = page.get("nextCursor")
        if not found:
            raise self.unusable("has no tools")
        return found

    def send(self, message):
        try:
            self.process.stdin.write(json.dumps(dict(message, jsonrpc="2.0")).encode("utf-8", "replace") + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self.ended()

    def ask(self, method, params):
        """Sends a request; its number is what answer() takes. Several may be under way."""
        self.last_id += 1
        self.send({"id": self.last_id, "method": method, "params": params})
        return self.last_id

    def answer(self, number):
        while number not in self.answers:
            line = self.process.stdout.readline()
            if not line:
                raise self.ended()
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                raise self.unusable("wrote a line that is no message: %s. Its log belongs on standard error" % shown(line))
            if "method" not in message:
                if not isinstance(message.get("id"), int):  # null: it could not read a request
                    raise self.unusable("sent an answer without the id of a request: " + shown(message))
                self.answers[message["id"]] = message
            elif "id" in message:  # a request of the server's
                known = {"result": {}} if message["method"] == "ping" else {
                    "error": {"code": -32601, "message": "not supported"}}
                self.send(dict(known, id=message["id"]))
        return self.answers.pop(number)

    def result_of(self, number):
        answer = self.answer(number)
        if "error" in answer:
            raise self.unusable("refused: " + self.reason(answer))
        return self.result_in(answer)

    def result_in(self, answer):
        if not isinstance(answer.get("result"), dict):
            raise self.unusable("sent an answer without a result: " + shown(answer))
        return answer["result"]

    def reason(self, answer):
        error = answer["error"]
        return str(error.get("message", "refused") if isinstance(error, dict) else error)

    def call_result(self, number):
        """What a tool says, and whether it is no error. A refusal is an answer to the model, too."""
        answer = self.answer(number)
        if "error" in answer:
            raise ValueError(self.reason(answer))
        result = self.result_in(answer)
        content = result.get("content", [])
        if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
            raise self.unusable("sent a result whose content is no list of parts: " + shown(result))
        parts = [part["text"] if part.get("type") == "text" and isinstance(part.get("text"), str)
                 else json.dumps(part, ensure_ascii=False) for part in content]
        if result.get("isError"):
            raise ValueError("\n".join(parts))
        return "\n".join(parts)

    def ended(self):
        return self.unusable("ended with exit code %s" % self.process.wait())

    def unusable(self, why):
        return Unusable("the MCP server '%s' %s" % (self.command, why))


def text_of(result):
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return str(result)


class Turns:
    def __init__(self, settings):
        self.modules, self.loop, self.games = {}, None, {}  # games: by episode
        self.tools, self.schemas = {}, []
        for entry in settings["tools"]:
            self.add_tool(entry)
        for command in settings.get("mcp", []):
            self.add_server(McpServer(command))
        self.verl = None
        if any(settings.get(name) for name in ("verl_tools", "verl_functions", "verl_interactions")):
            self.use_verl(VerlTools(settings))
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
        given = getattr(function, "json_schema", None)
        self.schemas.append(own_schema(name, given, path) if isinstance(given, dict) else schema_of_tool(name, function, path))

    def add_server(self, server):
        for tool in server.tools():
            name = tool["name"]
            if name in self.tools:
                raise Unusable("two tools have the name '%s'; one is of the MCP server '%s'" % (name, server.command))
            self.tools[name] = server
            self.schemas.append(own_schema(name, tool, server.command))

    def use_verl(self, verl):
        for name, schema in verl.schemas.items():
            if name in self.tools:
                raise Unusable("two tools have the name '%s'" % name)
            self.tools[name] = verl
            self.schemas.append(schema)
        self.verl = verl

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
        rewards = rewards or self.verl is not None
        return {"ready": True, "tools": self.schemas, "rewards": rewards, "version": "%d.%d.%d" % sys.version_info[:3]}

    def wait_for(self, result):
        if not inspect.isawaitable(result):
            return result
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(result)

    def reset(self, request):
        if self.verl is not None:
            self.games[request["episode"]] = self.wait_for(self.verl.begin(request))
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
        if self.verl is not None:
            game.note_turn(request["text"])
        calls = [] if request["last"] else request["calls"]
        if not calls:
            if self.verl is not None and self.verl.interactions and not request["last"]:
                return self.interact(game)
            answer = {"done": True}
            if hasattr(game, "get_reward"):
                answer["reward"] = self.number(self.wait_for(game.get_reward()))
            return answer
        messages, failed = [], 0
        answers = self.call_all(game, calls)
        reward = None
        if self.verl is not None:  # a call that reached no tool of verl's has the reward 0, as in verl
            given = [one if isinstance(one, VerlAnswer) else VerlAnswer(one, 0.0, is_good) for one, is_good in answers]
            reward = game.take(given)
            answers = [(one.text, one.is_good) for one in given]
        for call, (content, is_good) in zip(calls, answers):
            failed += not is_good
            messages.append({"role": "tool", "name": call.get("name", "unknown"), "content": content})
        answer = {"messages": messages, "calls": len(calls), "failed": failed}
        return answer if reward is None else dict(answer, reward=self.number(reward))

    def interact(self, game):
        """The answer of verl's interaction to a turn that calls no tool."""
        done, text, score = self.wait_for(self.verl.interact(game))
        answer = {"done": done, "reward": self.number(score)}
        return answer if done else dict(answer, messages=[{"role": "user", "content": text_of(text)}])

    def call_all(self, game, calls):
        """The answers to the calls of a turn. MCP tools and coroutines are under way at the same time; functions run in
        order."""
        started = [self.attempt(lambda: self.start(game, call)) for call in calls]
        waiting = [one for one, is_good in started if is_good and inspect.isawaitable(one)]
        results = iter(self.wait_for(self.gather(waiting)) if waiting else [])
        return [self.attempt(lambda: self.finish(one, results)) if is_good else (one, False) for one, is_good in started]

    async def gather(self, waiting):
        async def answer_of(one):
            try:
                return await one
            except SystemExit as error:  # it would end the loop
                return error

        return await asyncio.gather(*map(answer_of, waiting), return_exceptions=True)

    def attempt(self, work):
        try:
            result = work()
            end_if_forked()  # before it calls the other tools of the turn
            return result, True
        except Unusable:
            raise
        except (Exception, SystemExit) as error:  # the model sees it, and may try again
            return json.dumps({"error": "%s: %s" % (type(error).__name__, error)}, ensure_ascii=False), False

    def start(self, game, call):
        name = call.get("name", "")
        if "error" in call:
            raise ValueError(call["error"])
        if name not in self.tools:
            raise ValueError("there is no tool '%s'; there is %s" % (name, ", ".join(sorted(self.tools))))
        tool = self.tools[name]
        if isinstance(tool, McpServer):
            return tool, tool.ask("tools/call", {"name": name, "arguments": call["arguments"]})
        if isinstance(tool, VerlTools):
            return tool.call(name, call["arguments"], game)
        function = getattr(game, tool) if isinstance(tool, str) else tool
        result = function(**call["arguments"])
        return result if inspect.isawaitable(result) else [text_of(result)]

    def finish(self, started, results):
        if isinstance(started, tuple):
            server, number = started
            return server.call_result(number)
        if not inspect.isawaitable(started):
            return started[0]
        result = next(results)
        if isinstance(result, BaseException):
            raise result
        return result if isinstance(result, VerlAnswer) else text_of(result)

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
            raise Unusable("the reward is %r; give a finite number" % value)
        return value

    def close(self, request):
        for episode in request["episodes"]:
            game = self.games.pop(episode, None)
            try:
                if isinstance(game, AgentData):
                    self.wait_for(self.verl.finalize(game))
                elif hasattr(game, "close"):
                    self.wait_for(game.close())
            except BaseException:  # nobody waits for an answer: the log has it
                traceback.print_exc()


def answer(turns, request, reply):
    try:
        if request["do"] == "close":
            return turns.close(request)
        given = turns.reset(request) if request["do"] == "reset" else turns.step(request)
    except Unusable as error:
        given = {"error": str(error)}
    except BaseException as error:  # exit() in an environment is an error of its episode
        given = {"error": describe(error, next(iter(turns.modules), ""))}
    reply.write(given)


serve(Turns, answer)
