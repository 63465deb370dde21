# The Python side of the reward `python`: runs one function of the user's file for the process that started it.
#
# First the settings come, and "ready" or an error goes back; then a frame of rows at a time. What it needs from
# plugins/shared/python_base.py stands above it in the program.
RESERVED = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
MAX_NAME_BYTES = 200
MAX_NOTE_CHARACTERS = 4096


def functions_of(module):
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def choose(module, name, path):
    """The function by its name ("Class.method" too); without one compute_score, reward, or the only public one."""
    found = functions_of(module)
    if not name:
        named = [n for n in ("compute_score", "reward") if n in found]
        if not named and len(found) == 1:
            named = found
        if not named:
            raise Unusable("%s has %s: say which with function = \"NAME\"" % (path, listed(found)))
        name = named[0]
    value = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise Unusable("%s has no function '%s'; it has %s" % (path, name, listed(found)))
        if inspect.isclass(value) and inspect.isfunction(inspect.getattr_static(value, part)):
            value = value()  # an ordinary method: of an object made without arguments
        value = getattr(value, part)
    if inspect.isclass(value):
        value = value()  # a class, say, is made without arguments
    if not callable(value):
        raise Unusable("'%s' in %s has the type %s: it is not a function" % (name, path, type(value).__name__))
    return name, value


def listed(names):
    return ", ".join(names[:20]) if names else "no functions of its own"


class Signature:
    def __init__(self, name, function, given):
        self.name, self.names, self.required, self.takes_all = name, [], [], False
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # made in C: it must take what there is
            self.takes_all = True
            return
        for p in parameters:
            if p.kind == p.VAR_KEYWORD:
                self.takes_all = True
            elif p.kind == p.POSITIONAL_ONLY:
                raise Unusable("parameter '%s' can be given by position only; arguments are given by name" % p.name)
            elif p.kind != p.VAR_POSITIONAL:
                self.names.append(p.name)
                if p.default is p.empty and p.name not in given:
                    self.required.append(p.name)

    def filter(self, arguments):
        if self.takes_all:
            return arguments
        return {k: v for k, v in arguments.items() if k in self.names}

    def check(self, arguments, there):
        missing = [name for name in self.required if name not in arguments]
        if missing:
            raise Unusable(
                "'%s' needs %s, which is not there; it can have %s, and what kwargs = '{...}' gives in the config"
                % (self.name, ", ".join("'%s'" % m for m in missing), ", ".join(there))
            )


def style_of(asked, signature, path, name):
    if asked != "auto":
        return asked
    verl = [n for n in signature.names if n in VERL]
    if "solution_str" in verl or len(verl) >= 2:
        return "verl"
    if signature.takes_all or any(n in RESERVED for n in signature.names):
        return "trl"
    raise Unusable(
        "'%s' in %s takes (%s): neither (prompts, completions, ...) nor (data_source, solution_str, ground_truth, "
        'extra_info); name its parameters so, or set style = "trl" or "verl"' % (name, path, ", ".join(signature.names))
    )


def number(value):
    """A float, None for "does not apply"; raises TypeError or ValueError for anything else."""
    if value is None:
        return None
    if isinstance(value, (str, bytes, bytearray, dict)) or not hasattr(value, "__float__"):
        if not hasattr(value, "__index__"):
            raise TypeError("gave %s (%s) where a number belongs" % (shown(value), type(value).__name__))
    value = float(value)
    if math.isinf(value):
        raise ValueError("gave the reward %r" % value)
    return None if math.isnan(value) else value


def note_of(value):
    """A text or a finite number of a row for the tables, else None."""
    if isinstance(value, str):
        return value[:MAX_NOTE_CHARACTERS]
    if isinstance(value, (bytes, bytearray, dict, list)):
        return None
    try:
        return number(value)
    except (TypeError, ValueError, OverflowError):
        return None


def name_of(name):
    name = str(name)
    if not name or not name.isprintable() or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise ValueError("the name %r must be printable and of 1 to %d bytes" % (name, MAX_NAME_BYTES))
    return name


class TrainerState:
    """What a TRL reward may ask of `trainer_state`; attributes that have no meaning here say so."""

    is_local_process_zero = True
    is_world_process_zero = True

    def __init__(self, global_step, max_steps):
        self.global_step = global_step
        if max_steps > 0:
            self.max_steps = max_steps

    def __getattr__(self, name):
        if name == "max_steps":
            raise AttributeError("trainer_state.max_steps is not known: set max_steps in the [[reward]] table")
        raise AttributeError("trainer_state has no '%s' here: it has %s" % (name, ", ".join(sorted(vars(self)))))


class Runner:
    def __init__(self, settings):
        self.path = settings["path"]
        self.warned = set()
        self.log = []
        self.loop = None
        self.name, self.function = choose(load(self.path), settings["function"], self.path)
        self.given = settings["kwargs"]
        self.signature = Signature(self.name, self.function, self.given)
        self.style = style_of(settings["style"], self.signature, self.path, self.name)
        if self.style == "verl":
            self.signature.check(VERL, VERL)
        call = self.function if inspect.isroutine(self.function) else getattr(self.function, "__call__")
        self.is_async = inspect.iscoroutinefunction(call)

    def ready(self):
        wants = None if self.signature.takes_all else self.signature.names
        at_once = self.is_async and self.style == "verl"
        return {"ready": True, "style": self.style, "function": self.name, "wants": wants, "at_once": at_once,
                "version": "%d.%d.%d" % sys.version_info[:3]}

    def warn(self, text):
        if text not in self.warned:  # once in a process, not once a step
            self.warned.add(text)
            self.log.append(text)

    def take_log(self):
        log, self.log = self.log, []
        return log

    def wait_for(self, awaitable):
        if self.loop is None:  # one for all calls, as clients that the user's file keeps are bound to theirs
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(awaitable)

    def call(self, arguments):
        result = self.function(**{**self.signature.filter(arguments), **self.given})  # the config's kwargs win
        end_if_forked()  # before it calls the user's code for other rows
        return result

    # TRL: all rows in one call.

    def score_batch(self, request):
        n = request["rows"]
        extra, metrics = {}, {}

        def log_extra(column, values):
            extra.setdefault(name_of(column), []).extend(values)

        def log_metric(name, value):
            value = float(value)
            if not math.isfinite(value):
                return self.warn("log_metric('%s'): values that are not finite are left out" % name)
            metric = metrics.setdefault(name_of(name), [0.0, 0])
            metric[0] += value
            metric[1] += 1

        arguments = dict(request["columns"])
        arguments.update({k: request[k] for k in ("prompts", "completions", "completion_ids") if k in request})
        arguments["trainer_state"] = TrainerState(max(request["step"] - 1, 0), request["max_steps"])
        arguments["log_extra"] = log_extra
        arguments["log_metric"] = log_metric
        self.signature.check(arguments, RESERVED + tuple(request["names"]))
        result = self.call(arguments)
        if inspect.isawaitable(result):
            result = self.wait_for(result)
        rewards, errors = self.rewards_of(result, n)
        return {"rewards": rewards, "errors": errors, "values": self.extra_of(extra, n), "metrics": metrics}

    def rewards_of(self, result, n):
        if result is None or isinstance(result, (str, bytes, dict)) or not hasattr(result, "__iter__"):
            raise Unusable("'%s' returned %s (%s), not a list of %d rewards"
                           % (self.name, shown(result), type(result).__name__, n))
        result = list(result)
        if len(result) != n:
            raise Unusable("'%s' returned %d rewards for %d completions" % (self.name, len(result), n))
        rewards, errors = [], {}
        for i, value in enumerate(result):
            try:
                rewards.append(number(value))
            except Exception as error:  # a type of the user's may raise anything
                rewards.append(None)
                errors[i] = "'%s' %s" % (self.name, error)
        return rewards, errors

    def extra_of(self, extra, n):
        values = {}
        for column, cells in extra.items():
            if len(cells) != n:
                self.warn("log_extra('%s'): %d values for %d rows; left out" % (column, len(cells), n))
                continue
            notes = [note_of(cell) for cell in cells]
            if any(cell is not None and x is None for cell, x in zip(cells, notes)):
                self.warn("log_extra('%s'): only texts and finite numbers are kept" % column)
            if any(x is not None for x in notes):
                values[column] = notes
        return values

    # verl: one row per call, reported as soon as it is done.

    def row_arguments(self, request, i):
        return {name: request[name][i] for name in VERL if name in request}

    def row_answer(self, i, result):
        values = {}
        if isinstance(result, dict):
            if "score" not in result:
                raise Unusable("'%s' returned a dict without 'score': it has %s"
                               % (self.name, ", ".join(map(str, result)) or "nothing"))
            for key, value in result.items():
                if key != "score" and note_of(value) is not None:
                    values[name_of(key)] = note_of(value)
            result = result["score"]
        try:
            return {"row": i, "reward": number(result), "values": values}
        except Exception as error:
            return {"row": i, "error": "'%s' %s" % (self.name, error)}

    def row_error(self, i, error):
        return {"row": i, "error": str(error) if isinstance(error, Unusable) else describe(error, self.path)}

    def score_rows(self, request, reply):
        for i in range(request["rows"]):
            try:
                arguments = self.row_arguments(request, i)
                result = self.call(arguments)
                if inspect.isawaitable(result):
                    result = self.wait_for(result)
                answer = self.row_answer(i, result)
            except BaseException as error:  # exit() in a reward is an error of its row
                answer = self.row_error(i, error)
            reply.write(answer)

    async def score_rows_at_once(self, request, reply):
        async def one(i):
            try:
                arguments = self.row_arguments(request, i)
                answer = self.row_answer(i, await self.call(arguments))
            except BaseException as error:  # what left this task would leave the others to the next batch
                answer = self.row_error(i, error)
            reply.write(answer)

        await asyncio.gather(*(one(i) for i in range(request["rows"])))


def start(settings):
    try:
        return Runner(settings)
    except Unusable:
        raise
    except BaseException as error:
        raise Unusable("importing %s failed: %s" % (settings["path"], describe(error, settings["path"])))


def answer(runner, request, reply):
    try:
        if runner.style == "trl":
            given = runner.score_batch(request)
        else:
            if runner.is_async:
                runner.wait_for(runner.score_rows_at_once(request, reply))
            else:
                runner.score_rows(request, reply)
            given = {}
    except Unusable as error:
        given = {"error": str(error)}
    except BaseException as error:
        given = {"error": describe(error, runner.path)}
    reply.write(dict(given, done=True, log=runner.take_log()))


serve(start, answer)
