// The browser of completions in the page of `mortise report`. A step's rows are one JSON element, which is parsed when
// the step is looked at; a page on a server asks for them then. A search over all steps takes them one after the other
// and lets the page breathe in between. Only the steps that were looked at last stay parsed.
'use strict';
(() => {
  const { runs, make, number, show_findings } = window.mortise;
  const browser = document.getElementById('browser');
  const server = window.mortise_server;
  const with_rows = runs.map((run, i) => ({ run, i })).filter(({ run }) => run.completion_steps.length > 0 || server);
  if (with_rows.length === 0) {
    browser.append(make('p', { className: 'soft', text: 'The run wrote no completions. mortise train writes them if trainer.rollout_data_dir is set.' }));
    return;
  }

  // ---- rows and groups ----
  const kKept = 8, kPause_ms = 30, kPerPage = 50;
  const parsed = new Map();  // the last one is the one used last
  async function served_rows(run_index, step) {
    const { rows, damaged } = await (await server.ask(`ui/rows?run=${run_index}&step=${step}`)).json();
    if (damaged && !runs[run_index].damaged.includes(damaged)) {
      runs[run_index].damaged.push(damaged);
      show_findings();
    }
    return rows;
  }
  async function rows_of(run_index, step) {
    const id = `rows-${run_index}-${step}`;
    const rows = parsed.get(id) ?? (server ? await served_rows(run_index, step) : JSON.parse(document.getElementById(id).textContent));
    parsed.delete(id);
    parsed.set(id, rows);
    if (parsed.size > kKept) parsed.delete(parsed.keys().next().value);
    return rows;
  }
  const failed = (row) => row.score === null || row.environment_error || Object.values(row.errors || {}).some((e) => e !== null);
  function groups_of(step, rows) {
    const found = new Map();
    for (const row of rows) {
      if (!found.has(row.prompt_index)) found.set(row.prompt_index, []);
      found.get(row.prompt_index).push(row);
    }
    return [...found].map(([prompt, members]) => {
      const scores = members.map((row) => row.score).filter((x) => typeof x === 'number');
      const mean = scores.reduce((a, b) => a + b, 0) / Math.max(1, scores.length);
      const variance = scores.reduce((a, b) => a + (b - mean) ** 2, 0) / Math.max(1, scores.length);
      return { step, prompt, rows: members, mean, std: Math.sqrt(variance), end: members[0].input.slice(-160) };
    });
  }
  const pause = () => new Promise((go) => setTimeout(go, 0));
  // Calls visit(step, rows) for each step, and gives way to the page now and then. False: `is_wanted` said no.
  async function over_steps(run_index, steps, is_wanted, visit) {
    let last = performance.now();
    for (let i = 0; i < steps.length; ++i) {
      if (performance.now() - last > kPause_ms) {
        await pause();
        if (!is_wanted(i)) return false;
        last = performance.now();
      }
      visit(steps[i], await rows_of(run_index, steps[i]));
    }
    return true;
  }

  // ---- controls ----
  const choose = (label, values, on) => make('select', { on: { change: on }, set: { ariaLabel: label } },
    ...values.map(([value, text]) => make('option', { text, set: { value } })));
  const pick_run = choose('run', with_rows.map(({ run, i }) => [i, run.name]), () => { fill_steps(); show(); });
  const pick_step = choose('step', [], () => show());
  const pick_order = choose('order', [['batch', 'order of the batch'], ['spread', 'largest spread of the reward'],
    ['low', 'lowest reward'], ['high', 'highest reward']], () => show());
  const pick_filter = choose('filter', [['all', 'all prompts'], ['failed', 'a reward failed'], ['cut', 'a completion was cut off'],
    ['flat', 'no difference in the reward'], ['tools', 'a tool call failed']], () => show());
  const pick_color = choose('color', [['', 'no colors'], ['advantage', 'advantage'], ['ratio', 'ratio'], ['entropy', 'entropy'],
    ['clipped', 'clipped'], ['difference', 'log-prob difference']], () => show());
  const search = make('input', { set: { type: 'search', placeholder: 'text in prompt or completion', ariaLabel: 'search' },
    on: { input: () => { clearTimeout(search.timer); search.timer = setTimeout(show, 200); } } });
  const list = make('div');
  const count = make('p', { className: 'soft', set: { ariaLive: 'polite' } });
  const legend = make('p', { className: 'soft' });
  browser.append(make('div', { className: 'tools' }, pick_run, pick_step, pick_order, pick_filter, pick_color, search), count, legend, list);
  function fill_steps() {
    const steps = runs[pick_run.value].completion_steps;
    const all = steps.reduce((sum, { rows }) => sum + rows, 0);
    const count_of = (rows) => (Number.isFinite(rows) ? ` (${rows} rows)` : '');
    pick_step.replaceChildren(make('option', { text: `all steps${count_of(all)}`, set: { value: 'all' } }),
      ...steps.map(({ step, rows }) => make('option', { text: `step ${step}${count_of(rows)}`, set: { value: step } })));
    if (steps.length > 0) pick_step.value = steps[steps.length - 1].step;
  }
  // The run has more steps: the one that is looked at stays, unless it was the newest.
  function add_steps(run_index, steps) {
    const before = runs[run_index].completion_steps, looked_at = pick_step.value;
    runs[run_index].completion_steps = steps;
    runs[run_index].all_completion_steps = steps.length;
    if (Number(pick_run.value) !== run_index) return;
    const was_newest = before.length === 0 || looked_at === String(before.at(-1).step);
    fill_steps();
    const is_busy = list.querySelector('details[open]') !== null;
    if (!was_newest || is_busy) pick_step.value = looked_at;
    else show();
  }

  // ---- texts ----
  // The text with every place of `wanted` marked.
  function marked(text, wanted) {
    const node = make('pre');
    const lower = text.toLowerCase();
    let at = 0;
    for (let next = wanted ? lower.indexOf(wanted) : -1; next >= 0; next = lower.indexOf(wanted, at)) {
      node.append(text.slice(at, next), make('mark', { text: text.slice(next, next + wanted.length) }));
      at = next + wanted.length;
    }
    node.append(text.slice(at));
    return node;
  }
  // By what a token is colored: its value, and what is as strong a color as there is.
  const numbers = {
    advantage: { of: (t, i) => t.advantage?.[i], full: (values) => largest(values), text: 'advantage: blue above 0, red below' },
    ratio: { of: (t, i) => (t.ratio ? Math.log(t.ratio[i]) : undefined), full: () => Math.log(1.3),
      text: 'ratio of the last update to the policy that sampled: blue above 1, red below; strongest at 1.3 and 1/1.3' },
    entropy: { of: (t, i) => t.entropy?.[i], full: (values) => largest(values), text: 'entropy of the policy at the token' },
    clipped: { of: (t, i) => t.clipped?.[i], full: () => 1, text: 'tokens without a gradient because the loss clips them' },
    difference: { of: (t, i) => (t.log_prob && t.rollout_log_prob ? t.log_prob[i] - t.rollout_log_prob[i] : undefined),
      full: (values) => largest(values), text: 'log-prob of the trainer minus that of the sampler: blue above 0, red below' },
  };
  const largest = (values) => values.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  const shade = (share) => (share >= 0 ? `rgba(47,126,216,${0.75 * Math.min(1, share)})` : `rgba(217,60,50,${0.75 * Math.min(1, -share)})`);
  function colored(row, name, wanted) {
    const { of, full } = numbers[name];
    const tokens = row.tokens, values = tokens.text.map((_, i) => of(tokens, i));
    const known = values.filter((x) => Number.isFinite(x));
    if (known.length === 0) return marked(row.output, wanted);
    const scale = full(known) || 1;
    const node = make('pre', { className: 'tokens' });
    tokens.text.forEach((text, i) => {
      const token = make('span', { text });
      if (Number.isFinite(values[i])) token.style.backgroundColor = shade(values[i] / scale);
      token.title = Object.entries(tokens).filter(([key]) => key !== 'text').map(([key, all]) => `${key} ${number(all[i])}`).join('\n');
      if (wanted && text.toLowerCase().includes(wanted)) token.className = 'found';
      node.append(token);
    });
    return node;
  }
  // The messages of a row with several turns: those of tools, and calls, are folded.
  function turns_node(row, wanted) {
    const node = make('div');
    for (const message of row.turns) {
      const text = typeof message.content === 'string' ? message.content : JSON.stringify(message.content ?? '');
      const fold = make('details', { className: 'turn', set: { open: message.role === 'assistant' } },
        make('summary', { text: `${message.role}${message.name ? ` ${message.name}` : ''}: ${text.slice(0, 80)}` }), marked(text, wanted));
      for (const call of message.tool_calls || [])
        fold.append(make('details', { className: 'turn' }, make('summary', { text: `calls ${call.name ?? call.function?.name ?? 'a tool'}` }),
          make('pre', { text: JSON.stringify(call.arguments ?? call.function?.arguments ?? call, null, 1) })));
      node.append(fold);
    }
    return node;
  }
  // What changed from one text to the other, by words: the longest common subsequence.
  const kMostWords = 800;
  function difference(before, after) {
    const a = before.split(/(?<=\s)/), b = after.split(/(?<=\s)/);
    if (a.length > kMostWords || b.length > kMostWords) return make('pre', { text: after });
    const width = b.length + 1, common = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; --i)
      for (let j = b.length - 1; j >= 0; --j)
        common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    const node = make('pre');
    let i = 0, j = 0;
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { node.append(a[i++]); ++j; }
      else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) node.append(make('del', { text: a[i++] }));
      else node.append(make('ins', { text: b[j++] }));
    }
    return node;
  }

  // ---- cards ----
  function head_of(row) {
    const rewards = Object.entries(row.rewards || {}).map(([name, value]) => `${name} ${value === null ? 'none' : number(value)}`).join(', ');
    const errors = Object.entries(row.errors || {}).filter(([, text]) => text !== null);
    if (row.environment_error) errors.push(['environment', row.environment_error]);
    const tools = row.num_tool_calls ? ` · ${row.num_tool_calls} tool call${row.num_tool_calls === 1 ? '' : 's'}${row.num_failed_tool_calls ? `, ${row.num_failed_tool_calls} failed` : ''}` : '';
    return [make('div', {}, make('span', { className: 'score', text: `reward ${row.score === null ? 'none' : number(row.score)}` }),
      make('span', { className: 'soft', text: ` · ${row.advantage === undefined ? '' : `advantage ${number(row.advantage)} · `}${row.num_tokens} tokens · ${row.finish_reason}${tools}` })),
      rewards ? make('div', { className: 'soft', text: rewards }) : '',
      ...errors.map(([name, text]) => make('div', { className: 'error', text: `${name}: ${text}` }))];
  }
  function card(row, wanted) {
    const color = pick_color.value;
    const body = color && row.tokens ? colored(row, color, wanted) : row.turns?.length ? turns_node(row, wanted) : marked(row.output, wanted);
    return make('div', { className: 'row' }, ...head_of(row), body);
  }
  // The prompt in every step that has it: the completion with the highest reward, and what changed since the one before.
  async function fill_history(node, input) {
    const run_index = Number(pick_run.value);
    let before = null;
    await over_steps(run_index, runs[run_index].completion_steps.map(({ step }) => step), () => node.isConnected, (step, rows) => {
      const same = rows.filter((row) => row.input === input);
      if (same.length === 0) return;
      const best = same.reduce((a, b) => ((b.score ?? -Infinity) > (a.score ?? -Infinity) ? b : a));
      node.append(make('div', { className: 'row' }, make('strong', { text: `step ${step}, best of ${same.length}` }), ...head_of(best),
        before === null ? make('pre', { text: best.output }) : difference(before, best.output)));
      before = best.output;
    });
  }
  function group_node(entry, wanted) {
    const node = make('details', { className: 'group' }, make('summary', {
      text: `${pick_step.value === 'all' ? `step ${entry.step}   ` : ''}reward ${number(entry.mean)} ± ${number(entry.std)}   ${entry.end}` }));
    node.addEventListener('toggle', async () => {
      if (!node.open || node.childElementCount > 1 || node.is_filling) return;
      node.is_filling = true;
      const rows = (await rows_of(Number(pick_run.value), entry.step)).filter((row) => row.prompt_index === entry.prompt);
      const history = make('div', { className: 'rows' });
      const button = make('button', { text: 'This prompt in all steps', on: { click: () => { button.remove(); node.append(history); fill_history(history, rows[0].input); } } });
      const truth = rows[0].gts === undefined ? '' : make('div', { className: 'soft', text: `ground truth: ${typeof rows[0].gts === 'string' ? rows[0].gts : JSON.stringify(rows[0].gts)}` });
      node.append(make('div', { className: 'rows' },
        make('div', { className: 'row' }, make('strong', { text: 'prompt' }), marked(rows[0].input, wanted), truth, button),
        ...rows.map((row) => card(row, wanted))));
    });
    return node;
  }

  // ---- the list ----
  const filters = {
    all: () => true,
    failed: (group) => group.rows.some(failed),
    cut: (group) => group.rows.some((row) => row.finish_reason === 'length'),
    flat: (group) => group.std === 0,
    tools: (group) => group.rows.some((row) => row.num_failed_tool_calls > 0),
  };
  const orders = { batch: null, spread: (a, b) => b.std - a.std, low: (a, b) => a.mean - b.mean, high: (a, b) => b.mean - a.mean };
  let newest = 0;
  function show() {
    const mine = ++newest;
    show_as(mine).catch((error) => { if (mine === newest) count.textContent = `The completions could not be read: ${error.message}`; });
  }
  async function show_as(mine) {
    const run_index = Number(pick_run.value), run = runs[run_index];
    if (run.completion_steps.length === 0) {
      count.textContent = 'The run wrote no completions. mortise train writes them if trainer.rollout_data_dir is set.';
      return;
    }
    const wanted = search.value.trim().toLowerCase();
    const has = (group) => !wanted || group.rows[0].input.toLowerCase().includes(wanted) || group.rows.some((row) => row.output.toLowerCase().includes(wanted));
    const steps = pick_step.value === 'all' ? run.completion_steps.map(({ step }) => step) : [Number(pick_step.value)];
    let found = [], total = 0, with_tokens = 0;
    const is_wanted = (done) => {
      count.textContent = `${done} of ${steps.length} steps are searched.`;
      return mine === newest;
    };
    const finished = await over_steps(run_index, steps, is_wanted, (step, rows) => {
      for (const group of groups_of(step, rows)) {
        ++total;
        if (group.rows.some((row) => row.tokens)) ++with_tokens;
        if (!filters[pick_filter.value](group) || !has(group)) continue;
        found.push({ step, prompt: group.prompt, mean: group.mean, std: group.std, end: group.end });  // not its rows
      }
    });
    if (!finished || mine !== newest) return;
    if (orders[pick_order.value]) found.sort(orders[pick_order.value]);
    count.textContent = `${found.length} of ${total} prompts.` + (run.completion_steps.length < run.all_completion_steps
      ? ` The report holds ${run.completion_steps.length} of ${run.all_completion_steps} steps; mortise report --completions takes more.` : '');
    legend.textContent = !pick_color.value ? '' : with_tokens === 0
      ? 'No row here has the numbers of its tokens. Set trainer.rollout_data_tokens in the run to have them.'
      : numbers[pick_color.value].text + `. ${with_tokens} of ${total} prompts have the numbers of their tokens. Point at a token to see them.`;
    list.replaceChildren();
    const more = make('button', { text: 'Show more', on: { click: () => add() } });
    let shown = 0;
    function add() {
      more.remove();
      list.append(...found.slice(shown, shown + kPerPage).map((entry) => group_node(entry, wanted)));
      shown += kPerPage;
      if (shown < found.length) list.append(more);
    }
    add();
  }
  fill_steps();
  show();
  window.mortise.add_steps = add_steps;
})();
