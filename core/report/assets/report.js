// The page of `mortise report`: charts, tables and the browser of completions. Texts of a run are only ever set as
// textContent, never as HTML.
'use strict';
(() => {
  const runs = JSON.parse(document.getElementById('data').textContent);
  const colors = ['#2f7ed8', '#d9822b', '#2ca05a', '#a64ac9', '#c0392b', '#16a2a8', '#8d6e2f', '#607d8b'];
  const color = (i) => colors[i % colors.length];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const byId = (id) => document.getElementById(id);

  function make(tag, options = {}, ...children) {
    const node = document.createElement(tag);
    if (options.text !== undefined) node.textContent = options.text;
    if (options.className) node.className = options.className;
    for (const [name, value] of Object.entries(options.on || {})) node.addEventListener(name, value);
    for (const [name, value] of Object.entries(options.set || {})) node[name] = value;
    node.append(...children);
    return node;
  }
  const number = (x) => (x === null || x === undefined ? '' : Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3)
    ? x.toExponential(2) : String(Math.round(x * 1e4) / 1e4));

  // ---- head and findings ----
  runs.forEach((run, i) => {
    const dot = make('span', { className: 'dot' });
    dot.style.background = color(i);
    byId('runs').append(make('span', { className: 'run', set: { title: run.folder } }, dot,
      make('span', { text: `${run.name}: ${run.last_step} steps` })));
  });
  for (const run of runs) {
    if (runs.length > 1) byId('finding-list').append(make('h3', { text: run.name }));
    for (const finding of run.findings) {
      byId('finding-list').append(make('div', { className: 'finding' }, make('strong', { text: finding.title }),
        make('p', { text: finding.evidence }), make('p', { text: finding.advice }),
        make('p', { className: 'soft', text: finding.rule })));
    }
    if (run.findings.length === 0)
      byId('finding-list').append(make('p', { className: 'none', text: 'No rule found a fault.' }));
  }

  // ---- curves ----
  const groups = [
    ['Reward', [/^reward$/, /^reward_std$/, /^critic\/score\/mean$/, /^critic\/rewards\/mean$/, /^rewards\/.*\/mean$/, /^frac_reward_/]],
    ['Validation', [/^val-core\//]],
    ['Length', [/^response_length\/(mean|max|clip_ratio)$/, /^prompt_length\/mean$/, /^num_turns\/mean$/, /^tool_call_counts\/mean$/]],
    ['Policy', [/^entropy$/, /^kl$/, /^actor\/ppo_kl$/, /^actor\/reward_kl_penalty$/, /^clip_ratio\/(region|low|high)_mean$/,
      /^actor\/pg_clipfrac/, /^actor\/ratio_/]],
    ['Optimizer', [/^loss$/, /^grad_norm$/, /^learning_rate$/, /^actor\/skipped_updates$/, /^critic\/vf_/, /^critic\/grad_norm$/]],
    ['Sampler against trainer', [/^training\/rollout_probs_diff_(mean|max)$/, /^training\/rollout_actor_probs_pearson_corr$/,
      /^sampling\//, /^rollout_corr\/.*mean$/, /^training\/off_policy\//]],
    ['Time and memory', [/^timing_s\//, /^perf\/(throughput|cpu_memory_used_gb|failed_saves|mfu.*)$/]],
  ];
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].sort();
  const charts = [];
  const smoothing = byId('smoothing');

  // Exponential mean without its bias towards the beginning. Gaps stay gaps.
  function smooth(values, weight) {
    let sum = 0, total = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = sum * weight + value * (1 - weight);
      total = total * weight + (1 - weight);
      return sum / total;
    });
  }
  function datasets(metric) {
    return runs.flatMap((run, i) => {
      const series = run.metrics[metric];
      if (!series) return [];
      const values = smooth(series[1], Number(smoothing.value));
      return [{ label: run.name, borderColor: color(i), backgroundColor: color(i), borderWidth: 1.6,
        pointRadius: values.length > 60 ? 0 : 2, spanGaps: true, data: series[0].map((x, k) => ({ x, y: values[k] })) }];
    });
  }
  function draw(box, metric) {
    const canvas = make('canvas', { set: { role: 'img', ariaLabel: `${metric} over the steps` } });
    box.querySelector('.canvas').append(canvas);
    const axis = { grid: { color: css('--line') }, ticks: { color: css('--soft') } };
    charts.push({ metric, chart: new Chart(canvas, { type: 'line', data: { datasets: datasets(metric) },
      options: { animation: false, maintainAspectRatio: false, parsing: false, normalized: true,
        interaction: { mode: 'nearest', axis: 'x', intersect: false },
        plugins: { legend: { display: false }, tooltip: { callbacks: { title: (items) => `step ${items[0].parsed.x}` } } },
        scales: { x: { type: 'linear', ...axis }, y: { ...axis } } } }) });
  }
  // A chart is drawn when it comes into view.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      draw(entry.target, entry.target.metric);
    }
  }, { rootMargin: '300px' });
  function chart_box(metric) {
    const box = make('div', { className: 'chart', set: { metric } }, make('div', { className: 'name', text: metric }),
      make('div', { className: 'canvas' }));
    watcher.observe(box);
    return box;
  }
  function show_curves() {
    const wanted = byId('metric-search').value.trim().toLowerCase();
    for (const one of charts.splice(0)) one.chart.destroy();
    const all = wanted ? [[`Metrics with "${wanted}"`, names.filter((name) => name.toLowerCase().includes(wanted)).slice(0, 60)]]
      : groups.map(([title, patterns]) => [title, names.filter((name) => patterns.some((p) => p.test(name)))]);
    byId('groups').replaceChildren(...all.filter(([, found]) => found.length > 0).flatMap(([title, found]) =>
      [make('h3', { text: title }), make('div', { className: 'charts' }, ...found.map(chart_box))]));
    if (!byId('groups').hasChildNodes())
      byId('groups').append(make('p', { className: 'soft', text: 'No metric has this name.' }));
  }
  byId('metric-search').addEventListener('input', show_curves);
  smoothing.addEventListener('input', () => {
    for (const { metric, chart } of charts) {
      chart.data.datasets = datasets(metric);
      chart.update();
    }
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show_curves);
  show_curves();

  // ---- tables ----
  function table(head, rows) {
    return make('div', { className: 'wide' }, make('table', {}, make('thead', {}, make('tr', {}, ...head.map((text) => make('th', { text })))),
      make('tbody', {}, ...rows)));
  }
  const keys = [...new Set(runs.flatMap((run) => run.changed))].sort();
  byId('setting-table').append(
    make('p', { className: 'soft', text: runs.length > 1
      ? 'Settings that differ from the defaults. Marked rows differ between the runs.' : 'Settings that differ from the defaults.' }),
    table(['key', ...runs.map((run) => run.name)], keys.map((key) => {
      const values = runs.map((run) => run.settings[key] ?? 'not set');
      return make('tr', { className: new Set(values).size > 1 ? 'differs' : '' }, make('td', { text: key }),
        ...values.map((text) => make('td', { text })));
    })));
  byId('plugin-table').append(table(['run', 'kind', 'plugin', 'pack', 'SHA-256'], runs.flatMap((run) =>
    run.plugins.map((one) => make('tr', {}, make('td', { text: run.name }), make('td', { text: one.kind }),
      make('td', { text: one.name }), make('td', { text: `${one.pack} ${one.version}` }),
      make('td', { text: String(one.sha256).slice(0, 12) }))))));
  const events = runs.flatMap((run) => run.events.map((event) => make('tr', {}, make('td', { text: run.name }),
    make('td', { text: event.time.slice(0, 19).replace('T', ' ') }), make('td', { text: event.level, className: event.level }),
    make('td', {}, make('pre', { text: event.text })))));
  byId('event-list').append(events.length ? table(['run', 'time (UTC)', 'level', 'text'], events)
    : make('p', { className: 'soft', text: 'No warning, no error, no resume.' }));

  // ---- completions ----
  const browser = byId('browser');
  const with_rows = runs.map((run, i) => ({ run, i })).filter(({ run }) => run.completion_steps.length > 0);
  if (with_rows.length === 0) {
    browser.append(make('p', { className: 'soft', text: 'The run wrote no completions. Set trainer.rollout_data_dir to see them here.' }));
    return;
  }
  const parsed = new Map();
  function rows_of(run_index, step) {
    const id = `rows-${run_index}-${step}`;
    if (!parsed.has(id)) parsed.set(id, JSON.parse(byId(id).textContent));
    return parsed.get(id);
  }
  function groups_of(rows) {
    const found = new Map();
    for (const row of rows) {
      if (!found.has(row.prompt_index)) found.set(row.prompt_index, { input: row.input, gts: row.gts, rows: [] });
      found.get(row.prompt_index).rows.push(row);
    }
    for (const group of found.values()) {
      const scores = group.rows.map((row) => row.score).filter((x) => typeof x === 'number');
      group.mean = scores.reduce((a, b) => a + b, 0) / Math.max(1, scores.length);
      group.std = Math.sqrt(scores.reduce((a, b) => a + (b - group.mean) ** 2, 0) / Math.max(1, scores.length));
      group.failed = group.rows.some((row) => row.score === null || Object.values(row.errors || {}).some((e) => e !== null));
      group.cut = group.rows.some((row) => row.finish_reason === 'length');
    }
    return [...found.values()];
  }
  const choose = (values, on) => make('select', { on: { change: on } }, ...values.map(([value, text]) => make('option', { text, set: { value } })));
  const pick_run = choose(with_rows.map(({ run, i }) => [i, run.name]), () => { fill_steps(); show(); });
  const pick_step = choose([], () => show());
  const pick_order = choose([['batch', 'order of the batch'], ['spread', 'largest spread of the reward'], ['low', 'lowest reward'],
    ['high', 'highest reward']], () => show());
  const pick_filter = choose([['all', 'all prompts'], ['failed', 'a reward failed'], ['cut', 'a completion was cut off'],
    ['flat', 'no difference in the reward']], () => show());
  const search = make('input', { set: { type: 'search', placeholder: 'text in prompt or completion' }, on: { input: () => show() } });
  const list = make('div');
  const count = make('p', { className: 'soft' });
  browser.append(make('div', { className: 'tools' }, pick_run, pick_step, pick_order, pick_filter, search), count, list);
  function fill_steps() {
    const run = runs[pick_run.value];
    pick_step.replaceChildren(...run.completion_steps.map(({ step, rows }) => make('option', { text: `step ${step} (${rows} rows)`, set: { value: step } })));
    pick_step.value = run.completion_steps[run.completion_steps.length - 1].step;
  }
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
  function row_card(row, wanted) {
    const rewards = Object.entries(row.rewards || {}).map(([name, value]) => `${name} ${value === null ? 'none' : number(value)}`).join(', ');
    const errors = Object.entries(row.errors || {}).filter(([, text]) => text !== null);
    return make('div', { className: 'row' },
      make('div', {}, make('span', { className: 'score', text: `reward ${row.score === null ? 'none' : number(row.score)}` }),
        make('span', { className: 'soft', text: `  advantage ${number(row.advantage)}  ${row.tokens} tokens  ${row.finish_reason}` })),
      rewards ? make('div', { className: 'soft', text: rewards }) : '',
      ...errors.map(([name, text]) => make('div', { className: 'error', text: `${name}: ${text}` })),
      marked(row.output, wanted));
  }
  // The same prompt in the other steps: the completion with the highest reward of each.
  function over_steps(input) {
    const run_index = Number(pick_run.value);
    const cards = [];
    for (const { step } of runs[run_index].completion_steps) {
      const rows = rows_of(run_index, step).filter((row) => row.input === input);
      if (rows.length === 0) continue;
      const best = rows.reduce((a, b) => ((b.score ?? -Infinity) > (a.score ?? -Infinity) ? b : a));
      cards.push(make('div', { className: 'row' }, make('strong', { text: `step ${step}, best of ${rows.length}` }), row_card(best, '')));
    }
    return make('div', { className: 'rows' }, ...cards);
  }
  function group_node(group, wanted) {
    const node = make('details', { className: 'group' }, make('summary', {
      text: `reward ${number(group.mean)} ± ${number(group.std)}   ${group.input.slice(-160)}` }));
    node.addEventListener('toggle', () => {
      if (!node.open || node.childElementCount > 1) return;
      const others = make('button', { text: 'This prompt in other steps', on: { click: () => others.replaceWith(over_steps(group.input)) } });
      node.append(make('div', { className: 'rows' }, make('div', { className: 'row' }, make('strong', { text: 'prompt' }), marked(group.input, wanted),
        group.gts !== undefined ? make('div', { className: 'soft', text: `ground truth: ${typeof group.gts === 'string' ? group.gts : JSON.stringify(group.gts)}` }) : '', others),
        ...group.rows.map((row) => row_card(row, wanted))));
    });
    return node;
  }
  const kPerPage = 50;
  function show() {
    const wanted = search.value.trim().toLowerCase();
    let found = groups_of(rows_of(Number(pick_run.value), pick_step.value));
    const total = found.length;
    const keep = { all: () => true, failed: (g) => g.failed, cut: (g) => g.cut, flat: (g) => g.std === 0 }[pick_filter.value];
    found = found.filter((g) => keep(g) && (!wanted || g.input.toLowerCase().includes(wanted) || g.rows.some((row) => row.output.toLowerCase().includes(wanted))));
    const order = { batch: null, spread: (a, b) => b.std - a.std, low: (a, b) => a.mean - b.mean, high: (a, b) => b.mean - a.mean }[pick_order.value];
    if (order) found.sort(order);
    const run = runs[pick_run.value];
    count.textContent = `${found.length} of ${total} prompts.` + (run.completion_steps.length < run.all_completion_steps
      ? ` The report holds ${run.completion_steps.length} of ${run.all_completion_steps} steps; mortise report --completions takes more.` : '');
    list.replaceChildren();
    const more = make('button', { text: 'Show more', on: { click: () => add() } });
    let shown = 0;
    function add() {
      more.remove();
      list.append(...found.slice(shown, shown + kPerPage).map((group) => group_node(group, wanted)));
      shown += kPerPage;
      if (shown < found.length) list.append(more);
    }
    add();
  }
  fill_steps();
  show();
})();
