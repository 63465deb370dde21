// The playground of `mortise serve --ui`: two models answer one prompt, and rewards score what they say. Texts are only
// ever set as textContent, never as HTML.
'use strict';
(() => {
  const byId = (id) => document.getElementById(id), server = window.mortise_server;
  const number = (x) => (x === null || x === undefined ? '' : String(Math.round(x * 1e4) / 1e4));
  const kNumTop = 5;  // alternatives of a token

  function make(tag, options = {}, ...children) {
    const node = document.createElement(tag);
    if (options.text !== undefined) node.textContent = options.text;
    if (options.className) node.className = options.className;
    Object.assign(node, options.set || {});
    for (const [name, value] of Object.entries(options.on || {})) node.addEventListener(name, value);
    node.append(...children);
    return node;
  }
  const tell = (text) => { byId('message').textContent = text; };
  const is_chat = () => byId('form').value === 'chat';

  // ---- what there is ----
  let models = [], runs = [];
  const run_of = (side) => models.find((one) => one.id === side.pick.value)?.run ?? null;

  // ---- tokens ----
  const percent = (log_prob) => `${number(100 * Math.exp(log_prob))} %`;
  const quoted = (text) => JSON.stringify(text);
  function token_node(text, tokens) {
    const node = make('span', { text });
    const least = Math.min(...tokens.map((one) => one.log_prob));
    node.style.backgroundColor = `rgba(217,60,50,${(0.6 * (1 - Math.exp(least))).toFixed(3)})`;
    node.title = tokens.map((one) => [`${quoted(one.text)} ${percent(one.log_prob)}`,
      ...one.top.filter(([other]) => other !== one.text).map(([other, log_prob]) => `   ${quoted(other)} ${percent(log_prob)}`)].join('\n')).join('\n');
    return node;
  }
  // Tokens of a piece of the stream, in the form of either endpoint.
  function tokens_of(choice) {
    const log_probs = choice.logprobs;
    if (!log_probs) return [];
    if (log_probs.content)
      return log_probs.content.map((one) => ({ text: one.token, log_prob: one.logprob, top: one.top_logprobs.map((t) => [t.token, t.logprob]) }));
    return log_probs.tokens.map((text, i) => ({ text, log_prob: log_probs.token_logprobs[i], top: Object.entries(log_probs.top_logprobs[i] ?? {}) }));
  }

  // ---- an answer as it comes ----
  // Text comes when a character is whole, which may be several tokens later: they are then one colored piece.
  function answer_in(node) {
    const pending = [];
    const answer = { text: '', ids: [], finish: null };
    let thoughts = null;
    const put = (place, text) => {
      if (pending.map((one) => one.text).join('') === text) pending.splice(0).forEach((one) => place.append(token_node(one.text, [one])));
      else place.append(pending.length ? token_node(text, pending.splice(0)) : text);
    };
    answer.take = (choice) => {
      const text = choice.delta ? choice.delta.content ?? '' : choice.text ?? '';
      const reasoning = choice.delta?.reasoning ?? '';  // gpt-oss: what the model says to itself
      answer.text += text;
      answer.ids.push(...(choice.token_ids ?? []));
      pending.push(...tokens_of(choice));
      answer.finish = choice.finish_reason ?? answer.finish;
      if (reasoning) {
        if (!thoughts) {
          thoughts = make('span');
          node.append(make('details', { className: 'soft' }, make('summary', { text: 'analysis' }), thoughts));
        }
        put(thoughts, reasoning);
      }
      if (text) put(node, text);
      if (!choice.finish_reason) return;
      for (const one of pending.splice(0)) {  // an end token has no text of its own
        const last = token_node(one.text, [one]);
        last.classList.add('end');
        node.append(last);
      }
    };
    return answer;
  }
  async function read_stream(response, take) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error('The answer ended early.');
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith('data: ')) continue;
        if (line === 'data: [DONE]') return;
        const event = JSON.parse(line.slice(6));
        if (event.error) throw new Error(event.error.message);
        for (const choice of event.choices) take(choice);
      }
    }
  }
  function sampling() {
    const body = { temperature: Number(byId('temperature').value), top_p: Number(byId('top_p').value), max_tokens: Number(byId('max_tokens').value) };
    if (byId('seed').value !== '') body.seed = Number(byId('seed').value);
    return body;
  }
  async function complete(side, signal) {
    // Whoever clears the side gives it other messages: what this request still says is then for nobody.
    const chat = side.chat, messages = side.messages, prompt = side.prompt, is_cleared = () => side.messages !== messages;
    const body = { model: side.pick.value, stream: true, return_token_ids: true, ...sampling() };
    if (chat) Object.assign(body, { messages, logprobs: true, top_logprobs: kNumTop });
    else Object.assign(body, { prompt, logprobs: kNumTop });
    const kwargs = runs[run_of(side)]?.chat_template_kwargs;
    if (chat && kwargs && Object.keys(kwargs).length > 0) body.chat_template_kwargs = kwargs;
    const node = make('pre', { className: 'tokens' });
    const turn = make('div', { className: 'row' }, make('div', { className: 'soft', text: `${side.pick.value} answers` }), node);
    side.said.append(turn);
    side.note.textContent = 'The model is loaded when it is first asked.';
    side.answer = null;
    side.score.disabled = true;
    try {
      const response = await server.ask(chat ? 'v1/chat/completions' : 'v1/completions', body, signal);
      if (is_cleared()) return;
      side.note.textContent = '';
      const answer = answer_in(node);
      await read_stream(response, answer.take);
      if (is_cleared()) return;
      side.answer = answer;
      side.scored = chat ? [...messages] : prompt;
      if (chat) messages.push({ role: 'assistant', content: answer.text });
      side.note.textContent = `${answer.ids.length} tokens, ${answer.finish === 'length' ? 'cut off at max_tokens' : 'ended by itself'}`;
    } catch (error) {
      if (is_cleared()) return;
      side.note.textContent = signal.aborted ? 'You stopped it.' : `No answer: ${error.message}`;
      turn.classList.add('failed');
      if (chat) messages.pop();  // the question was not answered
    }
    side.score.disabled = !(side.answer && runs.some((run) => run.has_rewards));
  }

  // ---- scores ----
  function columns() {
    const text = byId('columns').value.trim();
    const value = text === '' ? {} : JSON.parse(text);
    if (value === null || typeof value !== 'object' || Array.isArray(value)) throw new Error('they are not a JSON object');
    return value;
  }
  async function score(side) {
    const answer = side.answer;
    side.score.disabled = true;
    side.result.replaceChildren(make('span', { className: 'soft', text: 'The rewards are computed.' }));
    try {
      let row = {};
      try { row = columns(); } catch (error) { throw new Error(`The data columns cannot be read: ${error.message}`); }
      const body = { run: run_of(side) ?? 0, columns: row, prompt: side.scored, completion: answer.text,
        finish_reason: answer.finish };
      if (run_of(side) !== null) body.token_ids = answer.ids;
      const scored = await (await server.ask('ui/score', body)).json();
      if (side.answer !== answer) return;
      side.result.replaceChildren(...scored.rewards.map((one) => make('div', { className: one.error ? 'error' : '',
        text: `${one.name}: ${one.value === null ? `no score (${one.error || 'it does not apply to this row'})` : number(one.value)}${one.weight === 1 ? '' : ` × ${number(one.weight)}`}` })),
        make('div', { className: 'score', text: scored.score === null ? 'no score' : `reward ${number(scored.score)}` }));
    } catch (error) {
      if (side.answer !== answer) return;
      side.result.replaceChildren(make('div', { className: 'error', text: `no score: ${error.message}` }));
    }
    side.score.disabled = false;
  }

  // ---- the sides ----
  const sides = [0, 1].map((i) => {
    const side = { messages: [], prompt: '', chat: true, answer: null, running: null };
    side.pick = make('select', { set: { ariaLabel: `model ${i + 1}` }, on: { change: () => clear(side) } });
    side.said = make('div', { className: 'said' });
    side.note = make('p', { className: 'soft', set: { ariaLive: 'polite' } });
    side.score = make('button', { text: 'Score', set: { disabled: true }, on: { click: () => score(side) } });
    side.result = make('div', { className: 'result', set: { ariaLive: 'polite' } });
    byId('sides').append(make('section', { className: 'chart side' }, side.pick, side.said, side.note, side.score, side.result));
    return side;
  });
  function clear(side) {
    side.running?.abort();
    Object.assign(side, { messages: [], prompt: '', answer: null });
    side.said.replaceChildren();
    side.result.replaceChildren();
    side.note.textContent = '';
    side.score.disabled = true;
  }
  function ask_side(side, text) {
    side.result.replaceChildren();
    side.chat = is_chat();
    side.said.append(make('div', { className: 'row asked' }, make('pre', { text })));
    if (!side.chat) { side.prompt = text; return; }
    const system = byId('system').value.trim();
    if (side.messages.length === 0 && system) side.messages.push({ role: 'system', content: system });
    side.messages.push({ role: 'user', content: text });
  }
  async function send() {
    const text = byId('prompt').value;
    if (!text.trim()) return tell('Write a prompt first.');
    tell('');
    byId('send').disabled = true;
    byId('stop').disabled = false;
    for (const side of sides) {
      ask_side(side, text);
      side.running = new AbortController();
    }
    await Promise.all(sides.map((side) => complete(side, side.running.signal)));
    byId('send').disabled = false;
    byId('stop').disabled = true;
  }
  async function take_row() {
    try {
      const run = run_of(sides[0]) ?? 0, file = byId('row-file').value;
      const row = await (await server.ask('ui/data_row', { run, file, number: Number(byId('row-number').value) })).json();
      for (const side of sides) clear(side);
      byId('form').value = row.messages ? 'chat' : 'text';
      const [first, last] = row.messages ? [row.messages[0], row.messages.at(-1)] : [null, null];
      if (row.messages && (row.messages.length > 2 || last.role !== 'user' || (row.messages.length === 2 && first.role !== 'system')))
        tell('The row has several turns; the prompt has the last one.');
      else tell('');
      byId('system').value = first?.role === 'system' ? first.content : '';
      byId('prompt').value = row.messages ? last.content : row.prompt;
      byId('columns').value = JSON.stringify(row.columns);
      show_form();
    } catch (error) { tell(`The row cannot be taken: ${error.message}`); }
  }
  function show_form() { byId('system-label').hidden = !is_chat(); }
  function show_run() {
    const run = runs[run_of(sides[0]) ?? 0];
    byId('columns-label').hidden = !runs.some((one) => one.has_rewards);
    byId('data-tools').hidden = !run?.data_files.length;
    byId('row-file').replaceChildren(...(run?.data_files ?? []).map((file) => make('option', { text: file, set: { value: file } })));
    if (run?.system_prompt && !byId('system').value) byId('system').value = run.system_prompt;
  }
  async function begin() {
    const all = await (await server.ask('v1/models')).json();
    models = all.data;
    runs = all.runs;
    byId('to-report').hidden = runs.length === 0;
    if (models.length === 0) return tell('The run has no checkpoint yet. Load this page again when it has saved one.');
    sides.forEach((side, i) => {
      side.pick.append(...models.map((one) => make('option', { text: one.title, set: { value: one.id } })));
      side.pick.value = i === 0 ? models[0].id : models.at(-1).id;
    });
    if (models.every((one) => !one.has_chat_template)) byId('form').value = 'text';
    if (runs[0]?.response_length) byId('max_tokens').value = runs[0].response_length;
    show_form();
    show_run();
  }
  byId('to-report').href = server.with_token('./');
  byId('form').addEventListener('change', () => { sides.forEach(clear); show_form(); });
  byId('send').addEventListener('click', send);
  byId('stop').addEventListener('click', () => sides.forEach((side) => side.running?.abort()));
  byId('clear').addEventListener('click', () => { sides.forEach(clear); tell(''); });
  byId('take-row').addEventListener('click', take_row);
  sides[0].pick.addEventListener('change', show_run);
  begin().catch((error) => tell(error.message));
})();
